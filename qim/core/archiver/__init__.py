"""HistoryArchiver: from effective outbox records to history that outlives the hot window (pipeline.md §5)."""

from qim.core.archiver.machine import HistoryArchiver
from qim.core.archiver.vocabulary import ArchiverConfig, ArchiverEffect, ArchiverEvent

__all__ = ["ArchiverConfig", "ArchiverEffect", "ArchiverEvent", "HistoryArchiver"]
