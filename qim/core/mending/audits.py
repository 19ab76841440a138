"""Audits that began before a repair end with it: what they judged stands at other offsets from now on (pipeline.md §8)."""

from typing import Final

from qim.core.audit.tenure import COVERAGE
from qim.core.mending.asking import Procedure, ask, epoch_of
from qim.core.mending.looking import key_of
from qim.core.ports.registry import EpochRaised, RaiseEpoch
from qim.core.ports.store_audit import CoverageOpened, OpenCoverage

EPOCHS_AHEAD: Final = 16
"""More grants than come between two requests: whoever was granted one of them is fenced, too."""


def end_audits(partition: int, fresh_key: bytes) -> Procedure[None]:
    """Raise the fence of the CoverageCursor above every auditor's epoch; the next run is granted a higher one.

    No lease is taken for that: an auditor need not be stopped, its run only moves no cursor any more.
    """
    epoch = (yield from epoch_of(COVERAGE.role, COVERAGE.number)) + EPOCHS_AHEAD
    yield from ask(RaiseEpoch(op=0, resource=COVERAGE, above=epoch), EpochRaised)
    key = key_of(epoch, fresh_key)
    request = OpenCoverage(op=0, partition=partition, epoch=epoch, fresh_key=key)
    yield from ask(request, CoverageOpened)
