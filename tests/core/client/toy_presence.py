"""Toy presence: entries by (user, device) in a dict, a higher attempt replacing a lower one, each with a greater epoch."""

from qim.core.contract.entities import PresenceEntry
from qim.core.ports.store_mailbox import (
    EnterPresence,
    LeavePresence,
    PresenceEntered,
    PresenceLeft,
    PresenceRefreshed,
    RefreshPresence,
)


class ToyPresence(dict[tuple[int, bytes], PresenceEntry]):
    """What the mailbox store keeps of who is where."""

    def answer(
        self, effect: EnterPresence | RefreshPresence | LeavePresence
    ) -> PresenceEntered | PresenceRefreshed | PresenceLeft:
        match effect:
            case EnterPresence():
                return self._enter(effect)
            case RefreshPresence():
                lost = [
                    index
                    for index, hold in enumerate(effect.holds)
                    if self._epoch(hold.user_id, hold.device_id) > hold.session_epoch
                ]
                return PresenceRefreshed(op=effect.op, lost=tuple(lost))
            case LeavePresence():
                key = (effect.user_id, effect.device_id)
                if self._epoch(*key) == effect.session_epoch:
                    del self[key]
                return PresenceLeft(op=effect.op)

    def _epoch(self, user: int, device: bytes) -> int:
        entry = self.get((user, device))
        return entry.session_epoch if entry else 0

    def _enter(self, effect: EnterPresence) -> PresenceEntered:
        key = (effect.user_id, effect.device_id)
        old = self.get(key)
        if old is not None and old.attempt > effect.attempt:
            return PresenceEntered(op=effect.op, refused=True, session_epoch=0, replaced=None)
        epoch = max(self._epoch(*key) + 1, effect.now_wall << 16)
        self[key] = PresenceEntry(
            user_id=effect.user_id,
            device_id=effect.device_id,
            gateway=effect.gateway,
            conn=effect.conn,
            session_epoch=epoch,
            attempt=effect.attempt,
            expires_at=effect.now_wall + effect.ttl_ms,
        )
        return PresenceEntered(op=effect.op, refused=False, session_epoch=epoch, replaced=old)
