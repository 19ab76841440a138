"""What /healthz, /readyz and /livez say of one process: served from another thread, so only plain values are read."""

from typing import Any

from qim.services.observation import ProcessObserver

VIOLATIONS_TOLD_MAX = 10


class Health:
    """Written by the event loop, read by the operator's endpoint."""

    def __init__(self, observer: ProcessObserver, **told: Any) -> None:
        self._observer = observer
        self._told = told
        self.ready = False
        """It came to serve, and was not told to stop."""
        self.missing = ""
        """What is not served now, as words."""
        self.draining = False
        self.died: BaseException | None = None

    def state(self) -> dict[str, object]:
        """The details beside ``ok``."""
        violations = self._observer.violations[:VIOLATIONS_TOLD_MAX]
        return {
            **self._told,
            "violations": [f"{check}: {detail}" for check, detail in violations],
            "serving": self.ready and not self.missing,
            "missing": self.missing,
            "draining": self.draining,
        }

    def healthz(self) -> tuple[bool, dict[str, object]]:
        """No invariant was broken."""
        return self._observer.healthy, self.state()

    def readyz(self) -> tuple[bool, dict[str, object]]:
        """Healthy, and everything serves."""
        return self.ready and not self.missing and self._observer.healthy, self.state()

    def livez(self) -> tuple[bool, dict[str, object]]:
        """No machine died: a violation must not be restarted away."""
        return self.died is None, {}
