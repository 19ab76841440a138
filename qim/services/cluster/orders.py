"""Operators' orders at an auditor: judged by the connection's certificate, carried out here, logged with its SHA-256.

IDLE --> AT WORK --> IDLE     one order at a time; who hangs up meanwhile finds what was done by a dry run
IDLE, AT WORK --> STOPPING    a drain: what is under way ends, nothing new begins
"""

import asyncio
import json
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from qim.adapters import breakage
from qim.adapters.reporting import Reporting
from qim.adapters.rpc.incoming import Caller
from qim.adapters.start_refused import StartRefused
from qim.core.audit import AuditReport
from qim.core.contract.rpc_admin import AdminDone, AdminOrder, AdminRefusal
from qim.core.ports.network import Received, Send
from qim.services.audit_report import report_as_json
from qim.services.cluster.adapters import Open
from qim.services.cluster.tools import carried_out
from qim.services.mending import MendOrder
from qim.services.settings import Settings

REPORT_BYTES_MAX: Final = 7 << 20
"""Below what a frame between processes may have."""
MENDS: Final = ("redrive", "dispatches", "outbox", "states", "bump")
Fields = dict[str, object]


class Means(Struct, frozen=True, kw_only=True):
    """What the desk works with. ``caller``: who is at the other end of a connection; None: nobody any more."""

    settings: Settings
    open_ports: Open
    audit: Callable[[], Awaitable[AuditReport]]
    caller: Callable[[str], Caller | None]
    send: Callable[[Send], None]
    reporting: Reporting


class AdminDesk:
    """One an auditor; from its event loop only."""

    def __init__(self, loop: AbstractEventLoop, means: Means) -> None:
        self._loop = loop
        self._means = means
        self._at_work: asyncio.Task[None] | None = None
        self._stopping = False

    def received(self, event: Received) -> None:
        """An order: the network let nobody but an admin say one."""
        order = event.message
        assert isinstance(order, AdminOrder), order
        caller = self._means.caller(event.source)
        told = _described(order)
        if caller is None or not caller.certificate_sha256:
            # It named an address to be answered at, or is gone: nobody is there who proved who it is.
            self._tell("warning", "admin order refused", told | {"code": "admin_unproved"})
            self._ended("refused")
            return
        told |= {"certificate_sha256": caller.certificate_sha256, "peer": caller.peer}
        if self._stopping or self._at_work is not None:
            self._refuse(event.source, order, told, _busy(self._stopping))
            return
        self._tell("info", "admin order", told)
        work = self._work(event.source, order, told)
        self._at_work = breakage.begin(self._loop, work, "an admin order")

    async def rest(self, seconds_max: float) -> bool:
        """Take nothing new, and wait for what is under way; True when it ended in time."""
        self._stopping = True
        if self._at_work is None:
            return True
        done, _ = await asyncio.wait((self._at_work,), timeout=seconds_max)
        if not done:
            self._at_work.cancel()
        return bool(done)

    async def _work(self, source: str, order: AdminOrder, told: Fields) -> None:
        try:
            report = json.dumps(await self._carried_out(order)).encode()
            if len(report) > REPORT_BYTES_MAX:
                raise _too_long(order, len(report))
        except StartRefused as refused:
            self._refuse(source, order, told, refused)
        except Exception as error:
            # Whatever it was: the operator waits for a word, and the auditor is as good as before.
            self._tell("error", "admin order failed", told | {"why": repr(error)})
            self._ended("failed")
            self._answer(source, AdminDone(rid=order.rid, refusal=_of(_failed(order, error))))
        else:
            self._tell("info", "admin order done", told)
            self._ended("done")
            self._answer(source, AdminDone(rid=order.rid, report=report))
        finally:
            self._at_work = None

    async def _carried_out(self, order: AdminOrder) -> dict[str, Any]:
        means = self._means
        if order.what == "audit":
            return report_as_json(await means.audit())
        if order.what not in MENDS:
            raise _unknown(order)
        mending = MendOrder(
            what=order.what,  # type: ignore[arg-type]
            apply=True,
            partition=order.partition,
            offset=order.offset,
            shard=order.shard,
            force=order.force,
        )
        return await carried_out(means.settings, mending, means.open_ports)

    def _refuse(self, source: str, order: AdminOrder, told: Fields, refused: StartRefused) -> None:
        why = {"code": refused.code, "why": str(refused)}
        self._tell("warning", "admin order refused", told | why)
        self._ended("refused")
        self._answer(source, AdminDone(rid=order.rid, refusal=_of(refused)))

    def _answer(self, source: str, done: AdminDone) -> None:
        self._means.send(Send(address=source, message=done))

    def _ended(self, outcome: str) -> None:
        self._means.reporting.count("admin_orders", 1, outcome)

    def _tell(self, level: str, event: str, fields: Fields) -> None:
        self._means.reporting.log(level, event, fields)


def _described(order: AdminOrder) -> Fields:
    """What is ordered, for the log; a number that isn't there: all of them."""
    told: Fields = {"what": order.what[:32]}
    for name in ("partition", "offset", "shard"):
        if getattr(order, name) is not None:
            told[name] = getattr(order, name)
    return told | ({"force": True} if order.force else {})


def _of(refused: StartRefused) -> AdminRefusal:
    return AdminRefusal(
        code=refused.code,
        what=refused.what,
        got=refused.got,
        expected=refused.expected,
        command=refused.command,
    )


def _busy(stopping: bool) -> StartRefused:
    return StartRefused(
        "admin_stopping" if stopping else "admin_busy",
        "the auditor",
        got="stopping" if stopping else "at work on another order",
        expected="one order at a time, at an auditor that serves",
        command="the same again, once it serves" if stopping else "the same again, later",
    )


def _unknown(order: AdminOrder) -> StartRefused:
    return StartRefused(
        "admin_order_unknown",
        "the order",
        got=repr(order.what[:32]),
        expected=", ".join(("audit", *MENDS)),
        command="qim --version  # the command's and the auditor's must be one",
    )


def _too_long(order: AdminOrder, size: int) -> StartRefused:
    return StartRefused(
        "admin_report_long",
        f"the report of {order.what}, which was carried out,",
        got=f"{size} bytes",
        expected=f"at most {REPORT_BYTES_MAX}",
        command="a dry run, or the same for one partition or shard",
    )


def _failed(order: AdminOrder, error: Exception) -> StartRefused:
    return StartRefused(
        "admin_failed",
        f"the order {order.what[:32]}",
        got=f"ended by {repr(error)[:300]}",
        expected="carried out; in part it may have been, and it can be run again",
        command="a dry run, which says what is left; then the auditor's log",
    )
