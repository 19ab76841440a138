"""STATE_SYNC: what the user's other devices read, pinned, muted, hid or drafted, at login and every now and then (§4).

The revision stands in the local store beside the states it covers, so a batch is never asked for in vain nor missed.
"""

from qim.core.client.context import ClientContext, StatesSaving, WaitKind
from qim.core.client.vocabulary import DevicesTold
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import StateBatch, StateSync
from qim.core.machine import Ms
from qim.core.ports.local_sessions import SaveStates, SyncedState


class StateSyncing:
    """``synced``: on this connection once, to the end."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.busy = False
        self.synced = False
        self._served = True
        self._revision = 0
        self._not_before: Ms = 0
        self._tries = 0

    def load(self, revision: int) -> None:
        """Where an earlier life stands."""
        self._revision = revision

    def lost(self) -> None:
        """The connection is gone."""
        self.busy = False
        self.synced = False
        self._served = True
        self._not_before = self._context.now
        self._tries = 0

    def want(self) -> None:
        """The user wants to know: at once."""
        self.synced = not self._served
        self._not_before = min(self._not_before, self._context.now)

    def pump(self) -> None:
        """Ask, if it is time."""
        if self.busy or not self._served or self._context.now < self._not_before:
            return
        self.busy = True
        self._context.ask(StateSync(since_revision=self._revision), WaitKind.STATE_SYNC)

    def deadline(self) -> Ms | None:
        """When to ask again."""
        return self._not_before if self._served and not self.busy else None

    def arrived(self, frame: StateBatch) -> None:
        """States and their revision in one transaction; of the devices nothing is kept."""
        context = self._context
        if frame.devices:
            devices = tuple((told.device_id, told.delivered_through) for told in frame.devices)
            context.order(DevicesTold(devices=devices))
        saving = StatesSaving(
            conn=context.conn,
            revision=frame.revision,
            count=len(frame.states),
            has_more=frame.has_more,
        )
        context.order(
            SaveStates(
                op=context.expect(saving),
                states=tuple(
                    SyncedState(
                        conversation_id=state.conversation_id,
                        version=state.version,
                        device_id=state.device_id,
                        read_seq=state.read_seq,
                        flags=state.flags,
                        value=state.value,
                    )
                    for state in frame.states
                ),
                revision=frame.revision,
            )
        )

    def batch_saved(self, saving: StatesSaving) -> None:
        """Stored, also where the connection has gone meanwhile."""
        progress = saving.revision > self._revision
        self._revision = max(self._revision, saving.revision)
        if not self.busy or saving.conn != self._context.conn:
            return
        self.busy = False
        self._tries = 0
        if not (saving.has_more and progress):
            self.synced = True
            self._not_before = self._context.now + self._context.config.state_sync_every_ms

    def refused(self, code: int, retry_after_ms: int) -> None:
        """Again after a pause; never on this connection where the server doesn't serve states."""
        self.busy = False
        if code == ErrorCode.UNSUPPORTED:
            self._served = False
            self.synced = True
        else:
            self._pause(retry_after_ms)

    def not_stored(self, saving: StatesSaving) -> None:
        """The local store could not keep them."""
        if self.busy and saving.conn == self._context.conn:
            self.busy = False
            self._pause(0)

    def _pause(self, at_least_ms: int) -> None:
        delay = self._context.backoff("client.states", self._tries)
        self._tries += 1
        self._not_before = self._context.now + max(delay, at_least_ms)
