"""The readable story of a run: what each process heard and ordered, with faults and violations in their places.

A replay is the same run with somebody watching; watching changes nothing, and the digest says so.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from qim.core.ports.log import Append, Fetched
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Count, Gauge
from qim.core.ports.sockets import BytesReceived, Write
from qim.sim.faults import Fault, tag_of
from qim.sim.history import Finding
from qim.sim.node import Host, Observe
from qim.sim.plan import Plan

TEXT_MAX: Final = 240
LIST_MAX: Final = 4
DULL: Final = (Gauge,)


class Line(Struct, frozen=True, kw_only=True, gc=False):
    """One thing that happened. kind: heard, ordered, fault, heals, violation."""

    at_ms: int
    node: str
    machine: str
    kind: str
    what: str
    text: str


_ARROWS: Final = {
    "heard": "→",
    "ordered": "←",
    "fault": "⚡",
    "heals": "✓",
    "violation": "✗",
}


class Story:
    """Collects lines while a world runs. ``follow``: only what names these bytes; ``node``: only this process."""

    def __init__(self, *, follow: bytes = b"", node: str = "") -> None:
        self.lines: list[Line] = []
        self.follow = follow
        self.node = node

    def observer(self) -> Observe:
        """To be handed to ``run``."""

        def observe(host: Host, now: int, events: list[Any], effects: Any) -> None:
            if self.node and host.node.name != self.node:
                return
            for event in events:
                self._note(host, "heard", event)
            for effect in effects:
                self._note(host, "ordered", effect)

        return observe

    def _note(self, host: Host, kind: str, fact: Any) -> None:
        if isinstance(fact, DULL):
            return
        if self.follow and (isinstance(fact, Count) or not mentions(fact, self.follow)):
            return
        what, text = describe(fact)
        self.lines.append(
            Line(
                at_ms=host.world.now,
                node=host.node.name,
                machine=host.name.rpartition("/")[2],
                kind=kind,
                what=what,
                text=text,
            )
        )

    def told(self, plan: Plan, findings: tuple[Finding, ...], until: int) -> list[Line]:
        """All lines in order of time, faults and violations among them."""
        extra = [line for fault in plan.faults for line in _fault_lines(fault, until)]
        extra += [_finding_line(finding) for finding in findings]
        # Faults come before what they did in the same millisecond, violations behind what showed them.
        order = {"fault": 0, "heals": 0, "heard": 1, "ordered": 1, "violation": 2}
        return sorted(self.lines + extra, key=lambda line: (line.at_ms, order[line.kind]))


def _fault_lines(fault: Fault, until: int) -> Iterator[Line]:
    name = tag_of(type(fault))
    text = ", ".join(f"{key}={value}" for key, value in msgspec.structs.asdict(fault).items())
    node = getattr(fault, "node", "")
    if fault.at_ms <= until:
        yield Line(at_ms=fault.at_ms, node=node, machine="", kind="fault", what=name, text=text)
    if 0 < fault.until_ms <= until:
        yield Line(at_ms=fault.until_ms, node=node, machine="", kind="heals", what=name, text="")


def _finding_line(finding: Finding) -> Line:
    text = finding.detail
    if finding.message_id:
        text += f" [message {finding.message_id.hex()}]"
    return Line(
        at_ms=finding.at,
        node=finding.role,
        machine="",
        kind="violation",
        what=finding.check,
        text=text,
    )


def render(line: Line) -> str:
    """One line for people."""
    place = (
        f"{line.node}/{line.machine}" if line.machine and line.machine != "client" else line.node
    )
    return f"{line.at_ms:>8} ms  {place:<28} {_ARROWS[line.kind]} {line.what} {line.text}".rstrip()


def describe(fact: Any) -> tuple[str, str]:
    """(name, fields in short) of an event or effect; what it carries comes first."""
    kind = type(fact)
    if kind is Received:
        return f"{type(fact.message).__name__} from {fact.source}", _fields(fact.message)
    if kind is Send:
        return f"{type(fact.message).__name__} to {fact.address}", _fields(fact.message)
    if kind in (BytesReceived, Write):
        return kind.__name__, f"conn={fact.conn} {len(fact.data)} bytes"
    if kind is Append:
        keys = " ".join(record.key.hex() or "barrier" for record in fact.records[:LIST_MAX])
        text = f"op={fact.op} {fact.topic}/{fact.partition} epoch={fact.epoch} {len(fact.records)}: {keys}"
        return kind.__name__, text
    if kind is Fetched:
        return kind.__name__, f"op={fact.op} [{fact.start}, {fact.end}) {len(fact.records)} records"
    return kind.__name__, _fields(fact)


def _fields(fact: Any) -> str:
    parts = [f"{name}={_short(getattr(fact, name))}" for name in fact.__struct_fields__]
    text = " ".join(parts)
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 16 else f"{value[:8].hex()}…({len(value)} bytes)"
    if isinstance(value, tuple):
        shown = ", ".join(_short(item) for item in value[:LIST_MAX])
        return f"({shown}{', …' if len(value) > LIST_MAX else ''})"
    if isinstance(value, Struct):
        return f"{type(value).__name__}({_fields(value)})"
    return str(value)


def mentions(fact: Any, needle: bytes) -> bool:
    """Whether these bytes stand anywhere in it, also inside of frames and log values."""
    if isinstance(fact, bytes):
        return needle in fact
    if isinstance(fact, Struct):
        return any(mentions(getattr(fact, name), needle) for name in fact.__struct_fields__)
    if isinstance(fact, tuple | list):
        return any(mentions(item, needle) for item in fact)
    return False
