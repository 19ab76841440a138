"""The one machine shape (architecture.md, "The machine").

Every stage of Q-IM is an object with three methods and no world of its own: facts come in as events, orders go out as
effects, and the driver (services/runtime.py or sim/world.py) owes exactly one completion for every effect that carries
an ``op``.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, get_args

Ms = int
"""Milliseconds. ``now`` is monotonic; wall time is a field that the edge stamps on an event and is named so."""

ChoiceKey = tuple[int | str | bytes, ...]
Choose = Callable[[str, ChoiceKey], int]
"""``choose(site, key) -> u64``: the only entropy of a machine. 0 is the benign choice (simulator.md)."""

Event_contra = TypeVar("Event_contra", contravariant=True)
Effect_co = TypeVar("Effect_co", covariant=True)


def kinds(union: object) -> frozenset[type]:
    """The Structs of a union, to ask ``type(event) in ANSWERS`` in front of a ``match`` that names everything else.

    An arm that does not match costs six times a look at the type, because the metaclass of a Struct isn't ``type``; and
    most events are the answers that such a match comes to last.
    """
    return frozenset(get_args(union))


class Machine(Protocol[Event_contra, Effect_co]):
    """What a driver may ask of a machine. One task calls ``step``, never re-entrantly."""

    def step(self, now: Ms, events: Sequence[Event_contra]) -> Sequence[Effect_co]:
        """Take a batch of facts, give a batch of orders; one bad item never spoils the rest."""
        ...

    def deadline(self) -> Ms | None:
        """Monotonic time at which ``step`` must be called again at the latest; an early call is harmless."""
        ...

    def check(self) -> None:
        """Assert the machine's own invariants; the simulator calls it after every step."""
        ...
