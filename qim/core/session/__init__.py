"""SessionProjection (pipeline.md §4)."""

from qim.core.session.machine import SessionProjection
from qim.core.session.vocabulary import SessionConfig, SessionEffect, SessionEvent

__all__ = ["SessionConfig", "SessionEffect", "SessionEvent", "SessionProjection"]
