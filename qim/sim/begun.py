"""Where devices without a cursor were let begin: what lies before is not the mailbox's to give (pipeline.md §6, REBUILD).

A new device begins at the read-back position and owes nothing below it. One that rebuilds begins there too, but keeps its
messages and anchors: what lies below is owed as far as history shows it. Known exactly: a batch on a disk without a cursor
was asked for with the cursor that AUTH_OK gave, and the ask says where that stands.
"""

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from qim.core.contract.cursor import decode_cursor
from qim.core.contract.errors import ProtocolError
from qim.core.contract.rpc import AskPull, PullAnswer
from qim.core.ports.local_store import LoadLocal, LocalLoaded, LocalState, SaveBatch, SaveState
from qim.core.ports.network import Send
from qim.sim.oracle import Entry, Oracle
from qim.sim.secret import SECRET

if TYPE_CHECKING:
    from qim.sim.history import History
    from qim.sim.localstore import Device
    from qim.sim.node import Host

PULLS_MAX: Final = 4_096
NOWHERE: Final = Entry(seq=0, order=0)


class Beginning(Struct, kw_only=True):
    """``first``: through there nothing is owed; ``rebuilt``: through there history gives what it shows.

    ``last``: where the batch began that was saved last on a disk without a cursor, None where nobody saw it asked for.
    """

    first: Entry = NOWHERE
    rebuilt: Entry = NOWHERE
    last: int | None = None


class Begun:
    """Follows pulls and disks. Of a run whose questions nobody heard it knows nothing."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._devices: dict[str, Beginning] = {}
        self._moored: dict[str, bool] = {}
        self._anchored: dict[str, bool] = {}
        self._asked: dict[tuple[str, int], int] = {}
        self._pulled: dict[bytes, int] = {}

    def attach(self, history: "History") -> None:
        """Before every checker: they read what is noted here."""
        history.on_sent.setdefault(AskPull, []).append(self.on_ask)
        history.on_sent.setdefault(PullAnswer, []).append(self.on_answer)
        history.on_local.setdefault(LoadLocal, []).append(self.on_load)
        history.on_local.setdefault(SaveState, []).append(self.on_state)
        history.on_local.setdefault(SaveBatch, []).append(self.on_batch)

    def of(self, name: str) -> Beginning:
        """A device's, by the name of its node."""
        return self._devices.get(name) or Beginning()

    def on_ask(self, host: "Host", effect: Send) -> None:
        """From where."""
        ask = effect.message
        assert isinstance(ask, AskPull)
        try:
            cursor = decode_cursor(ask.cursor, SECRET)
        except ProtocolError:
            return
        _keep(self._asked, (host.node.name, ask.rid), cursor.seq)

    def on_answer(self, host: "Host", effect: Send) -> None:
        """To where: the cursor names user and device."""
        answer = effect.message
        assert isinstance(answer, PullAnswer)
        asked = self._asked.get((effect.address, answer.rid))
        if asked is not None:
            _keep(self._pulled, answer.cursor, asked)

    def on_load(self, device: "Device", request: LoadLocal, answer: LocalLoaded) -> None:
        """What the disk says at a start, also when somebody has laid hands on it meanwhile."""
        self._moored[device.name] = answer.cursor is not None
        self._anchored[device.name] = answer.anchored

    def on_state(self, device: "Device", request: SaveState, answer: Any) -> None:
        """A rebuild begins without a cursor."""
        if request.drop_cursor:
            self._moored[device.name] = False

    def on_batch(self, device: "Device", request: SaveBatch, answer: Any) -> None:
        """The first one on a disk without a cursor."""
        if self._moored.get(device.name):
            return
        self._moored[device.name] = True
        began = self._pulled.get(request.cursor)
        row = self._devices.setdefault(device.name, Beginning())
        row.last = began
        if began is None:
            return
        # Compared with what was dispatched by now alone.
        stands = Entry(seq=began, order=self._oracle.dispatched_ever)
        if device.state == LocalState.REBUILDING or self._anchored.get(device.name):
            row.rebuilt = stands
        else:
            row.first = stands


def is_before(entry: Entry, beginning: Entry) -> bool:
    """At or below where a device began, and dispatched by then."""
    return entry.seq <= beginning.seq and entry.order < beginning.order


def _keep(kept: dict[Any, int], key: Any, value: int) -> None:
    """Among the last few."""
    kept.pop(key, None)
    while len(kept) >= PULLS_MAX:
        del kept[next(iter(kept))]
    kept[key] = value
