"""After SEND_EXPIRED: was the row committed after all? Its own record in the conversation's history says (pipeline.md §6).

Pages from the newest backwards until the record is found, or a page reaches behind the time in which the row can have
been committed at all: it was first transmitted not_after_ms before its not_after, and no commit has an older sent_at but
by the clocks' slack. One look-up at a time.
"""

from qim.core.client.context import ClientContext, WaitKind
from qim.core.client.outbox import OutboxRow
from qim.core.client.translation import coordinates_of_message, message_of_record
from qim.core.contract.frames import HistoryBatch, HistoryDirection, PullHistory
from qim.core.ports.local_store import Coordinates


class Lookup:
    """Asks and judges pages; what follows from them is Sending's to do."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._looking = False

    def start(self, entry: OutboxRow) -> bool:
        """Ask for the next page; False while another row looks."""
        if self._looking:
            return False
        self._looking = True
        frame = PullHistory(
            conversation_id=entry.conversation_id,
            anchor=entry.looked_from,
            direction=HistoryDirection.OLDER,
            limit=self._context.config.history_limit,
        )
        self._context.ask(frame, WaitKind.LOOKUP, key=entry.key)
        return True

    def lost(self) -> None:
        """The page won't come."""
        self._looking = False

    def judge(self, entry: OutboxRow, frame: HistoryBatch) -> Coordinates | None:
        """The row's record in this page, if it is there; else the next page begins where this one ends."""
        self._looking = False
        for record in frame.records:
            if record.client_message_id == entry.key:
                return coordinates_of_message(message_of_record(record, frame.conversation_id))
        if frame.records:
            entry.looked_from = frame.records[0].conversation_seq
        return None

    def is_over(self, entry: OutboxRow, frame: HistoryBatch) -> bool:
        """Nothing older can hold the row."""
        if not frame.has_more or not frame.records:
            return True
        parameters = self._context.config.parameters
        earliest = entry.row.not_after - parameters.not_after_ms - 2 * parameters.not_after_slack_ms
        return frame.records[0].sent_at < earliest
