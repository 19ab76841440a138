"""REBUILD: the cursor is worth nothing any more, the messages here are (pipeline.md §6, REBUILD).

    CURSOR_EXPIRED | INVALID | REBASED, or anchors on a disk that lost its cursor
        ──► REBUILDING stored, cursor dropped ──► AUTH without cursor
        ──► mailbox from the read-back position, as usual ──covered ≥ first sync_to_seq──►
        session list ──projected_through ≥ first sync_to_seq──►
        PULL_HISTORY newer from every conversation's anchor, the list's new ones too ──all read──► ONLINE stored

Nothing local is deleted. In this state only HISTORY_BATCH moves anchors: a mailbox batch read back from seven days ago
would jump over what the device missed before. The state is on disk, so a restart goes on; anchors moved so far stay.
"""

from qim.core.client.context import ClientContext, StateSaving
from qim.core.ports.local_store import LocalLoaded, LocalState, SaveState


class Rebuilding:
    """The stored state and what it still waits for. Mailbox, list and history are the work of other parts."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.state = LocalState.ONLINE
        self.target = 0
        self._dropping = False

    def load(self, loaded: LocalLoaded) -> None:
        """What an earlier life stored. Anchors that no cursor stands behind: the disk has lost it, and a device that read on
        from the read-back position as a new one would jump over what it missed before."""
        self.state = LocalState(loaded.state)
        self.target = loaded.rebuild_target
        if self.state is LocalState.ONLINE and loaded.cursor is None and loaded.anchored:
            self.begin()

    def is_done(self) -> bool:
        """Not REBUILDING: nothing older is still to come, and a MAILBOX_BATCH may raise anchors."""
        return self.state is LocalState.ONLINE

    def begin(self) -> None:
        """The cursor is refused or lost: store the state and forget the cursor in one transaction."""
        self._context.count("rebuilds")
        self.state = LocalState.REBUILDING
        self.target = 0
        self._dropping = True
        self._save(drop_cursor=True)

    def connected(self, sync_to_seq: int) -> None:
        """AUTH_OK: the first one's sync_to_seq is what the rebuild must reach."""
        if self.state is LocalState.REBUILDING and not self.target:
            self.target = sync_to_seq
            self._save(drop_cursor=False)

    def is_reached_by(self, mailbox_seq: int) -> bool:
        """Does it need no more of the mailbox, or of the list, than what stands up to here."""
        return not self.is_done() and 0 < self.target <= mailbox_seq

    def finish(self) -> None:
        """Every conversation is read to its end."""
        self.state = LocalState.ONLINE
        self.target = 0
        self._save(drop_cursor=False)

    def must_wait(self) -> bool:
        """No AUTH before the state is on disk: a new cursor under the old state would hide what was missed."""
        return self._dropping

    def state_saved(self, saving: StateSaving) -> None:
        """The stored state is the one in memory."""
        if saving.drop_cursor:
            self._dropping = False

    def save_again(self, saving: StateSaving) -> None:
        """Until it is stored: a restart in the wrong state would trust the wrong anchors."""
        if saving.drop_cursor or (saving.state, saving.rebuild_target) == (
            self.state,
            self.target,
        ):
            self._save(drop_cursor=saving.drop_cursor)

    def _save(self, *, drop_cursor: bool) -> None:
        saving = StateSaving(state=self.state, rebuild_target=self.target, drop_cursor=drop_cursor)
        self._context.order(
            SaveState(
                op=self._context.expect(saving),
                state=self.state,
                drop_cursor=drop_cursor,
                rebuild_target=self.target,
            )
        )
