"""What every metric is called, counts and means: one place, drawn into docs/metrics.md (a test holds the two together).

A metric has at most one label, of low cardinality. The table is metrics_table.py.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

PREFIX: Final = "qim_"


class Kind(StrEnum):
    """As Prometheus has them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricMeaning(Struct, frozen=True, kw_only=True):
    """``name`` without prefix and ``_total``; ``unit``: what one is; ``label``: its one label, or none; ``alarm``: the page."""

    name: str
    kind: Kind
    unit: str
    label: str
    meaning: str
    alarm: str = ""

    def exposed(self) -> str:
        """As it is scraped (a histogram's samples add _bucket, _sum, _count)."""
        return f"{PREFIX}{self.name}{'_total' if self.kind is Kind.COUNTER else ''}"
