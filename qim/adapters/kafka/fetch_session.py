"""A fetch session (KIP-227): the broker remembers what is polled, so a request names only what changed.

none --first poll, everything--> open --only changes--> open
open --error, other connection--> none
"""

from collections.abc import Mapping
from typing import Final

from qim.adapters.kafka.fetch_wire import FetchPart

FIRST_EPOCH: Final = 0
EPOCH_END: Final = 1 << 31

Parts = dict[tuple[str, int], FetchPart]


class FetchSession:
    """``sent`` is what the broker knows to be polled, as far as we know."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = FIRST_EPOCH
        self.sent: Parts = {}

    def changes(self, wanted: Mapping[tuple[str, int], FetchPart]) -> list[FetchPart]:
        """What the next request must name, and remember it as sent."""
        if self.id == 0:
            self.sent = dict(wanted)
            return list(wanted.values())
        changed = [part for key, part in wanted.items() if self.sent.get(key) != part]
        for part in changed:
            self.sent[part.topic, part.partition] = part
        return changed

    def forgotten(self, wanted: Mapping[tuple[str, int], FetchPart]) -> list[FetchPart]:
        """What the broker shall poll no longer. Before ``changes``."""
        if self.id == 0:
            return []
        gone = [key for key in self.sent if key not in wanted]
        # A topic id that changed is another topic to the broker: the old one goes, the new one comes.
        remade = [
            key
            for key, part in wanted.items()
            if key in self.sent and self.sent[key].topic_id != part.topic_id
        ]
        return [self.sent.pop(key) for key in (*gone, *remade)]

    def answered(self, session_id: int) -> None:
        """The broker's word; 0 where it keeps no session for us: then every request is a first one."""
        if session_id == 0:
            self.id, self.epoch = 0, FIRST_EPOCH
        else:
            self.id = session_id
            self.epoch = self.epoch + 1 if self.epoch + 1 < EPOCH_END else 1
