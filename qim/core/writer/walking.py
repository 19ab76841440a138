"""Carrying out scans: which store reads are in flight for a query, batched over its scans (pipeline.md §5).

query --> ReadHistory of many scans --> ReadArchive of one scan below its floor --> ReadHistory for their overlays --> done

A read in doubt or failed is asked again; one that nobody waits for any more is dropped. Nothing is answered here.
"""

from typing import Final

from qim.core.ports.archive import ArchiveRead, ReadArchive
from qim.core.ports.store_reads import HistoryRead, ReadHistory
from qim.core.writer.orders import Call, Flight, Orders
from qim.core.writer.overlays import Target
from qim.core.writer.query import Query, Tally
from qim.core.writer.scan import ArchiveAsk, Scan
from qim.core.writer.shard import Shard


class Walker:
    """Keeps nothing of its own: what is in flight stands in the query."""

    def __init__(self, orders: Orders) -> None:
        self._orders: Final = orders

    def go(self, shard: Shard, query: Query) -> bool:
        """Order what may be read next, in bounded flight. True: all is read."""
        scans = query.scans
        while query.undone < len(scans) and scans[query.undone].done():
            query.undone += 1
        config = self._orders.config
        batch: list[Scan] = []
        for index in range(query.undone, len(scans)):
            # The batch being gathered has its place already.
            room = query.flights + bool(batch) < config.reads_inflight_max
            if not room and not batch:
                break
            scan = scans[index]
            if scan.busy or scan.done():
                continue
            ask = scan.cold()
            if ask is None:
                scan.busy = True
                batch.append(scan)
            elif room:
                scan.busy = True
                self._ask_archive(shard, query, scan, ask)
            if len(batch) == config.history_items_max:
                self._ask_hot(shard, query, batch)
                batch = []
        if batch:
            self._ask_hot(shard, query, batch)
        return query.undone == len(scans) and not query.flights

    def _ask_hot(self, shard: Shard, query: Query, scans: list[Scan]) -> None:
        orders = self._orders
        query.flights += 1
        request = ReadHistory(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            items=tuple([scan.hot() for scan in scans]),
            bytes_max=orders.config.history_bytes_max,
        )
        orders.ask(Call.ROWS, shard, request, Flight(number=query.number, scans=tuple(scans)))

    def _ask_archive(self, shard: Shard, query: Query, scan: Scan, ask: ArchiveAsk) -> None:
        orders = self._orders
        query.flights += 1
        request = ReadArchive(
            op=orders.next_op(),
            conversation_id=scan.conversation_id,
            low=ask.low,
            high=ask.high,
            newest_first=ask.newest_first,
            limit=ask.limit,
        )
        orders.ask(Call.ARCHIVE, shard, request, Flight(number=query.number, scans=(scan,)))

    def take_rows(self, query: Query, flight: Flight, read: HistoryRead) -> None:
        """Pages of hot rows, or overlays of archived ones."""
        query.flights -= 1
        for scan, page in zip(flight.scans, read.pages, strict=True):
            scan.busy = False
            sink = scan.sink
            if isinstance(sink, Tally) and sink.page is None:
                sink.page = page
                scan.take_first(page)
            elif isinstance(sink, Target) and sink.page is None:
                sink.page = page
                if any(joined < sink.seq <= left for joined, left in page.intervals):
                    scan.take_hot(page)
                else:
                    scan.stop()
            else:
                scan.take_hot(page)

    def take_archive(self, query: Query, flight: Flight, read: ArchiveRead) -> None:
        """Rows below the floor of one scan."""
        query.flights -= 1
        (scan,) = flight.scans
        scan.busy = False
        scan.take_archive(read.stored, read.more)
