"""Which barriers stand in an outbox as it is: by them a position is told what means something behind it (pipeline.md §1.7).

Neither a store nor the registry knows: what they remember may have been lost with the log's tail, and an append that nobody
was told of stands unregistered.
"""

from collections.abc import Sequence

from qim.core.contract.logvalue import Barrier
from qim.core.mending.asking import NotMended, Procedure, barrier_below, ends, fetch, read
from qim.core.ports.log import Topic

Barriers = Sequence[tuple[int, int]]
"""(offset, epoch) of those that are above every one before them, rising; the first stands for all below the log's start."""


def barriers(partition: int) -> Procedure[Barriers]:
    """The whole log is read for it. Raises NotMended where it is not readable."""
    log = yield from ends(Topic.OUTBOX, partition)
    found = [(log.start - 1, (yield from barrier_below(partition, log.start)))]
    offset = log.start
    while offset < log.end:
        records = yield from fetch(Topic.OUTBOX, partition, offset)
        if not records:
            raise NotMended(f"outbox {partition} is not readable at {offset}")
        for stored in records:
            offset = stored.offset + 1
            entry = read(stored)
            if isinstance(entry, Barrier) and entry.epoch > found[-1][1]:
                found.append((stored.offset, entry.epoch))
    return found


def passed_at(standing: Barriers, offset: int) -> int:
    """The greatest epoch of those below ``offset``."""
    return max((epoch for at, epoch in standing if at < offset), default=0)
