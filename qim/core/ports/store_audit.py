"""What the auditor writes into the message store: CoverageCursors, under a fence of their own (pipeline.md §§0, 8).

Conventions as in ports/store_message.py. One lease covers the cursors of all outbox partitions; each partition's store
keeps the fence. An auditor that slept beyond its lease would else drop facts which its successor has found to be the
only evidence of an orphan, or move a cursor past records that an outbox repaired meanwhile holds at other offsets.
"""

from msgspec import Struct


class OpenCoverage(Struct, frozen=True, kw_only=True, gc=False):
    """Raise the fence of a partition's CoverageCursor, before the facts are read. Answers: CoverageOpened, Fenced."""

    op: int
    partition: int
    epoch: int
    fresh_key: bytes
    opener: bytes = b""


class CoverageOpened(Struct, frozen=True, kw_only=True, gc=False):
    """The fence stands: nothing of a lower epoch is accepted in this incarnation. ``covered_to`` 0: nothing yet."""

    op: int
    incarnation: bytes
    covered_to: int


class AdvanceCoverage(Struct, frozen=True, kw_only=True, gc=False):
    """Move the CoverageCursor of an outbox partition forward and delete these facts behind it.

    Answers: CoverageAdvanced, Fenced.
    """

    op: int
    partition: int
    epoch: int
    incarnation: bytes
    covered_to: int
    drop_facts: tuple[bytes, ...]


class CoverageAdvanced(Struct, frozen=True, kw_only=True, gc=False):
    """Done."""

    op: int


CoverageStoreRequest = OpenCoverage | AdvanceCoverage
CoverageStoreReply = CoverageOpened | CoverageAdvanced
