"""Routes of the writer's questions to the outside: asks and notices to the hooks (ports/moderation.py)."""

from collections.abc import Callable
from typing import Any, Protocol

from qim.core.ports.moderation import AskVerdict, NotifySent
from qim.services.runtime import Hosted, Route


class Hooks(Protocol):
    """``submit`` answers exactly once, ``notify`` owes nothing; both on the event loop."""

    def submit(self, request: Any, answer: Callable[[Any], None]) -> None: ...

    def notify(self, told: NotifySent) -> None: ...


def moderation_routes(hooks: Hooks) -> dict[type, Route]:
    """For a writer whose config says ``before_send`` or ``after_send``; others order neither."""

    def ask(effect: Any, hosted: Hosted) -> None:
        hooks.submit(effect, hosted.post)

    def tell(effect: Any, hosted: Hosted) -> None:
        hooks.notify(effect)

    return {AskVerdict: ask, NotifySent: tell}
