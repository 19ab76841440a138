"""What one process tells an operator: /metrics, /healthz and the rest, asked over HTTP."""

import re
import time
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

FRESH_SECONDS_MAX = 60.0
_SAMPLE = re.compile(r"^(\w+?)(?:\{([^}]*)\})? ([0-9.e+-]+|[+-]Inf|NaN)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class OperatorView:
    """Of a process whose ready line names its ``metrics`` address."""

    ready: dict[str, Any]

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the operator's endpoint."""
        try:
            with urlopen(f"http://{self.ready['metrics']}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[tuple[str, str], float]:
        """Every sample by (name, label); of a histogram its sums and counts.

        Asked again where the process's loop did not come to tell: its gauges are those of some earlier time then.
        """
        deadline = time.monotonic() + FRESH_SECONDS_MAX
        while True:
            samples = self._scraped()
            if not samples.get(("qim_samples_stale", "")) or time.monotonic() > deadline:
                return samples

    def _scraped(self) -> dict[tuple[str, str], float]:
        status, text = self.get("/metrics")
        assert status == 200
        samples: dict[tuple[str, str], float] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                found = _SAMPLE.match(line)
                assert found, f"no sample: {line!r}"
                labels = dict(_LABEL.findall(found[2] or ""))
                if "le" not in labels:
                    (label,) = labels.values() or ("",)
                    samples[found[1], label] = float(found[3])
        return samples

    def metric(self, name: str, label: str = "") -> float:
        """One sample, 0 where it was never counted."""
        return self.metrics().get((name, label), 0.0)
