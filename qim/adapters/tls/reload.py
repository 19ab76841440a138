"""Certificates in use and their successors: a reload is judged whole before anything of it is used."""

import asyncio
import signal
from collections.abc import Callable, Collection, Iterable
from typing import Generic, Protocol, TypeVar

from qim.adapters.reporting import Reporting
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.pair import Leaf

Material = TypeVar("Material")


class Reloads(Protocol):
    """Anything that reads its certificates again."""

    def reload(self) -> bool: ...


class Reloadable(Generic[Material]):
    """``current``: what the next handshake uses; connections that stand keep what they began with."""

    def __init__(
        self,
        name: str,
        build: Callable[[], tuple[Material, dict[str, Leaf]]],
        reporting: Reporting,
    ) -> None:
        """Raises StartRefused: there is no old pair to go on with yet."""
        self._name = name
        self._build = build
        self._reporting = reporting
        self.current, self.leaves = build()

    def reload(self) -> bool:
        """Read the files again; False: they are bad, and the old ones stay. Logged and counted either way."""
        try:
            self.current, self.leaves = self._build()
        except Exception as refused:
            # Not StartRefused alone: a full disk or a certificate no library reads must not keep the others from theirs.
            code = refused.code if isinstance(refused, StartRefused) else "tls_unreadable"
            self._reporting.count("tls_reloads", 1, f"{self._name} refused")
            self._reporting.log(
                "error",
                "certificates not reloaded, the old ones stay",
                {"tls": self._name, "code": code, "why": str(refused) or repr(refused)},
            )
            return False
        self._reporting.count("tls_reloads", 1, f"{self._name} done")
        for side, leaf in self.leaves.items():
            self._reporting.log(
                "info",
                "certificate reloaded",
                {
                    "tls": self._name,
                    "side": side,
                    "sha256": leaf.sha256,
                    "not_after": leaf.not_after.isoformat(),
                },
            )
        return True

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """Seconds until each certificate in use expires; negative once it has."""
        for side, leaf in self.leaves.items():
            yield "tls_certificate_expires_seconds", f"{self._name} {side}", leaf.seconds_left()


def reload_on_hangup(loop: asyncio.AbstractEventLoop, tls: Collection[Reloads]) -> None:
    """SIGHUP reads all of them again, each for itself; ``tls`` may grow meanwhile, as it does in a start."""

    def hangup() -> None:
        for one in tuple(tls):
            one.reload()

    loop.add_signal_handler(signal.SIGHUP, hangup)
