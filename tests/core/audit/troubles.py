"""What may be answered instead of the right answer, and the report of an audit that it kept from judging."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from qim.core.audit import AuditReport, Verdict
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.log import Topic
from tests.core.audit.toy import SILENCE, Toy

Trouble = Callable[[Any], Any]


def failed(request: Any) -> Any:
    return Failed(op=request.op, why=FailReason.UNREACHABLE)


def unknown(request: Any) -> Any:
    return Unknown(op=request.op)


def fenced(request: Any) -> Any:
    return Fenced(op=request.op, epoch=1)


def silent(request: Any) -> Any:
    return SILENCE


def is_a(request: Any, name: str) -> bool:
    kind, _, topic = name.partition(" ")
    named = type(request).__name__ == kind
    return named and (not topic or getattr(request, "topic", None) == Topic(topic))


def incomplete(report: AuditReport) -> tuple[str, ...]:
    assert report.orphans == ()
    assert report.verdict is Verdict.INCOMPLETE
    return report.incomplete


def ranges(report: AuditReport) -> list[tuple[int, int, int]]:
    return [(one.partition, one.low, one.high) for one in report.covered]


def reset(request: Any) -> Any:
    return StoreReset(op=request.op, store=StoreRole.MAILBOX)


def hole(toy: Toy, log: str) -> Trouble:
    """The first window of ``log`` comes without its second record."""

    def without(request: Any) -> Any:
        if is_a(request, f"Fetch {log}") and request.offset == 0 and request.limit > 1:
            reply = toy.answer(request)
            return replace(reply, records=(*reply.records[:1], *reply.records[2:]))
        return None

    return without
