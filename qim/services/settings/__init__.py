"""What a process of `qim serve` is told: read, judged, printed (docs/configuration.md)."""

from qim.services.settings.checks import (
    check_settings,
    has_internal_tls,
    log_faults,
    parameter_faults,
    registry_faults,
    require,
    warnings,
)
from qim.services.settings.model import Settings
from qim.services.settings.reading import Reading, read_settings

__all__ = [
    "Reading",
    "Settings",
    "check_settings",
    "has_internal_tls",
    "log_faults",
    "parameter_faults",
    "read_settings",
    "registry_faults",
    "require",
    "warnings",
]
