"""The orphan audit (pipeline.md §8)."""

from qim.core.audit.machine import Auditor
from qim.core.audit.vocabulary import (
    AuditConfig,
    AuditEffect,
    AuditEvent,
    AuditFinished,
    AuditReport,
    AuditRequested,
    Orphan,
    OrphanKind,
    Verdict,
)

__all__ = [
    "AuditConfig",
    "AuditEffect",
    "AuditEvent",
    "AuditFinished",
    "AuditReport",
    "AuditRequested",
    "Auditor",
    "Orphan",
    "OrphanKind",
    "Verdict",
]
