"""Every choice is keyed: what happens to a payload depends on who it is, never on what else happened before it.

``choose(seed, site, key)`` has no state, so that taking one fault or one message out of a plan leaves all other choices
where they were (simulator.md, "Plan, world, verdict"). A draw is 64 bits; an operation draws ONCE and the bits are sliced
for latency, fault and tiebreak. Slices that are all zero are the benign choice: least latency, no fault, first in line.
"""

import struct
from typing import Final

from xxhash import xxh3_64_intdigest

from qim.core.machine import ChoiceKey, Choose

_OP = struct.Struct("<IIQ")
_TEXT_BYTES_MAX: Final = 1 << 16

TIEBREAK_SHIFT: Final = 44
LATENCY_MASK: Final = 0xFFF
FAULT_SHIFT: Final = 12
FAULT_MASK: Final = 0xFFFF
DETAIL_SHIFT: Final = 28
DETAIL_MASK: Final = 0xFFFF


def key_bytes(site: str, key: ChoiceKey) -> bytes:
    """One encoding for every key: each part is told apart from its neighbours and from other kinds."""
    parts = [site.encode()]
    for part in key:
        if type(part) is bytes:
            parts.append(b"b%d:%b" % (len(part), part))
        elif isinstance(part, int):
            parts.append(b"i%d" % part)
        else:
            text = str(part).encode()
            assert len(text) < _TEXT_BYTES_MAX
            parts.append(b"s%d:%b" % (len(text), text))
    return b"|".join(parts)


def choose(seed: int, site: str, key: ChoiceKey) -> int:
    """u64 for (seed, site, key)."""
    return xxh3_64_intdigest(key_bytes(site, key), seed)


def machine_choose(seed: int, node: str, generation: int) -> Choose:
    """The ``choose`` of one process generation: what has no payload is keyed by (node, generation, site)."""
    prefix: ChoiceKey = (node, generation)

    def chosen(site: str, key: ChoiceKey) -> int:
        return xxh3_64_intdigest(key_bytes(site, prefix + key), seed)

    return chosen


def fault_level(draw: int) -> int:
    """Below a rate of 65,536 the fault happens. Counted from the top, so that the benign draw hits no gate."""
    return FAULT_MASK - (draw >> FAULT_SHIFT & FAULT_MASK)


class Way:
    """How long it takes between two processes: at least ``base_ms``, and less than ``spread_ms`` more, as drawn."""

    __slots__ = ("base_ms", "spread_ms")

    def __init__(self, base_ms: int, spread_ms: int) -> None:
        self.base_ms = base_ms
        self.spread_ms = spread_ms

    def there(self, draw: int) -> int:
        """ms until what is sent arrives."""
        return self.base_ms + (draw & LATENCY_MASK) * self.spread_ms // (LATENCY_MASK + 1)

    def back(self, draw: int) -> int:
        """ms until the answer is there, from other bits of the same draw."""
        detail = draw >> DETAIL_SHIFT & DETAIL_MASK
        return self.base_ms + detail * self.spread_ms // (DETAIL_MASK + 1)


class Dice:
    """Draws of the world's services: (site, identity of the payload, attempt)."""

    __slots__ = ("_attempts", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._attempts: dict[tuple[int, int], int] = {}

    def draw(self, site: int, identity: int) -> int:
        """u64 for the next attempt of this payload at this hop; ``site`` u32, ``identity`` u64."""
        attempts = self._attempts
        key = (site, identity)
        attempt = attempts.get(key, 0)
        attempts[key] = attempt + 1
        return xxh3_64_intdigest(_OP.pack(site, attempt, identity), self.seed)
