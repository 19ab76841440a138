"""What an operator orders of an auditor, and its answer (issue: admin operations need Admin mTLS; pipeline.md §§2, 7, 8)."""

from msgspec import Struct


class AdminOrder(Struct, frozen=True, kw_only=True, tag="order", gc=False):
    """Admin to auditor: carry this out now. ``what``: audit, redrive, dispatches, outbox, states or bump.

    ``partition``, ``shard`` None: all of them; ``offset`` None: every dead letter there.
    """

    rid: int
    what: str
    partition: int | None = None
    offset: int | None = None
    shard: int | None = None
    force: bool = False


class AdminRefusal(Struct, frozen=True, array_like=True, gc=False):
    """Why an order is not carried out, as a refused start says it: what was found, what is needed, what to do."""

    code: str
    what: str
    got: str
    expected: str
    command: str


class AdminDone(Struct, frozen=True, kw_only=True, tag="ordered", gc=False):
    """Auditor to admin, on the connection that brought the order: its report as JSON, or why there is none."""

    rid: int
    report: bytes = b""
    refusal: AdminRefusal | None = None
