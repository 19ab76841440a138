"""Operators' orders at an auditor: who gave which is logged, one at a time, and every end has a word for who waits."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from qim.adapters.reporting import Reporting
from qim.adapters.rpc.admin import AuditorUnreachable
from qim.adapters.rpc.incoming import Caller
from qim.adapters.start_refused import StartRefused
from qim.core.audit import AuditReport
from qim.core.contract.rpc_admin import AdminDone, AdminOrder
from qim.core.ports.network import Received, Send
from qim.services.cluster import orders
from qim.services.cluster.admin import auditor_address, ordered
from qim.services.cluster.orders import AdminDesk, Means
from qim.services.roles import ServiceRole
from qim.services.settings import Settings, read_settings
from tests.adapters.tls.chain import chain
from tests.integration.served import eventually
from tests.services.one_process_cluster import SETTINGS, OneProcessCluster

ADMIN = Caller(peer="127.0.0.1:9", certificate_sha256="ad" * 32)


class Desk:
    """A desk whose audits end when the test says so."""

    def __init__(self, caller: Caller | None = ADMIN) -> None:
        self.sent: list[Send] = []
        self.lines: list[tuple[str, str, dict[str, object]]] = []
        self.counts: list[str] = []
        self.audits: list[asyncio.Future[AuditReport]] = []
        self.desk = AdminDesk(
            asyncio.get_running_loop(),
            Means(
                settings=SETTINGS,
                open_ports=self._open,
                audit=self._audit,
                caller=lambda source: caller if source == "@1" else None,
                send=self.sent.append,
                reporting=Reporting(
                    log=self._log, count=lambda name, _, to: self.counts.append(to)
                ),
            ),
        )

    async def _audit(self) -> AuditReport:
        self.audits.append(asyncio.get_running_loop().create_future())
        return await self.audits[-1]

    async def _open(self, *_: Any) -> Any:
        raise StartRefused("redis_unreachable", "the store", got="no", expected="yes", command="-")

    def _log(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.lines.append((level, event, fields))

    def told(self, what: str, rid: int = 1, source: str = "@1", **more: Any) -> None:
        order = AdminOrder(rid=rid, what=what, **more)
        self.desk.received(Received(source=source, wall=1, message=order))

    def answers(self) -> list[AdminDone]:
        return [one.message for one in self.sent if isinstance(one.message, AdminDone)]


def finished(desk: Desk) -> None:
    """The report itself is made elsewhere."""
    desk.audits[-1].set_exception(RuntimeError("the store is gone"))


def test_an_order_is_logged_with_who_gave_it_and_how_it_ended() -> None:
    async def main() -> None:
        desk = Desk()
        desk.told("redrive", partition=3, offset=4711)
        await eventually(desk.answers)
        (answer,) = desk.answers()
        assert answer.refusal is not None
        assert (answer.rid, answer.refusal.code) == (1, "redis_unreachable")
        (_, begun, fields), (level, ended, why) = desk.lines
        assert (begun, ended, level) == ("admin order", "admin order refused", "warning")
        for told in (fields, why):
            assert told["certificate_sha256"] == "ad" * 32
            assert (told["what"], told["partition"], told["offset"]) == ("redrive", 3, 4711)
        assert why["code"] == "redis_unreachable"
        assert desk.counts == ["refused"]

    asyncio.run(main())


def test_one_order_at_a_time() -> None:
    async def main() -> None:
        desk = Desk()
        desk.told("audit", rid=1)
        await eventually(lambda: desk.audits)
        desk.told("bump", rid=2, shard=1)
        (busy,) = desk.answers()
        assert busy.rid == 2
        assert busy.refusal is not None and busy.refusal.code == "admin_busy"
        finished(desk)
        await eventually(lambda: len(desk.answers()) == 2)
        failed = desk.answers()[1]
        assert failed.refusal is not None and failed.refusal.code == "admin_failed"
        assert "the store is gone" in failed.refusal.got
        assert ("error", "admin order failed") in [line[:2] for line in desk.lines]
        desk.told("audit", rid=3)
        await eventually(lambda: len(desk.audits) == 2)
        assert await desk.desk.rest(0.0) is False, "cut off: the drain has an end"
        desk.told("audit", rid=4)
        stopping = desk.answers()[-1].refusal
        assert stopping is not None and stopping.code == "admin_stopping"

    asyncio.run(main())


def test_a_desk_at_rest_is_calm() -> None:
    async def main() -> None:
        assert await Desk().desk.rest(0.0)

    asyncio.run(main())


@pytest.mark.parametrize("caller", [None, Caller(peer="127.0.0.1:9", certificate_sha256="")])
def test_who_proved_nothing_orders_nothing(caller: Caller | None) -> None:
    async def main() -> None:
        desk = Desk(caller)
        desk.told("audit")
        assert not desk.audits and not desk.sent
        ((level, event, fields),) = desk.lines
        assert (level, event, fields["code"]) == (
            "warning",
            "admin order refused",
            "admin_unproved",
        )

    asyncio.run(main())


def test_an_order_of_another_version_is_refused_by_name() -> None:
    async def main() -> None:
        desk = Desk()
        desk.told("deadletters")
        await eventually(desk.answers)
        (answer,) = desk.answers()
        assert answer.refusal is not None and answer.refusal.code == "admin_order_unknown"

    asyncio.run(main())


def test_a_report_no_frame_can_carry_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    async def done(*_: Any) -> dict[str, Any]:
        return {"found": ["x" * orders.REPORT_BYTES_MAX]}

    monkeypatch.setattr(orders, "carried_out", done)

    async def main() -> None:
        desk = Desk()
        desk.told("outbox")
        await eventually(desk.answers)
        (answer,) = desk.answers()
        assert answer.refusal is not None and answer.refusal.code == "admin_report_long"

    asyncio.run(main())


# ------------------------------------------------------------ an auditor as `qim serve` makes it


def settings_of(role: str, **changed: str) -> Settings:
    return read_settings(chain().environment[role] | changed).require()


def with_tls(role: str) -> dict[str, Any]:
    """The fields of mTLS alone."""
    found = settings_of(role)
    return {
        name: getattr(found, name)
        for name in Settings.__struct_fields__
        if name.startswith("internal_") and name != "internal_advertise"
    }


def test_an_auditor_carries_out_what_an_admin_orders_and_a_writer_is_refused(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            ready = await cluster.start(ServiceRole.AUDITOR, **with_tls("auditor"))

            def order(role: str, what: str, **more: Any) -> dict[str, Any]:
                asked = AdminOrder(rid=1, what=what, **more)
                return ordered(settings_of(role), ready["internal"], asked, 60.0)

            report = await asyncio.to_thread(order, "admin", "audit")
            assert report["verdict"] in ("CLEAN", "INCOMPLETE")
            report = await asyncio.to_thread(order, "admin", "redrive")
            assert report == {"what": "redrive", "apply": True, "found": []}
            report = await asyncio.to_thread(order, "admin", "bump", shard=99)
            assert "there is no mailbox shard 99" in report["refused"]
            with pytest.raises(StartRefused, match="admin_wrong_role"):
                await asyncio.to_thread(order, "writer", "bump")
            with pytest.raises(StartRefused, match="admin_order_unknown"):
                await asyncio.to_thread(order, "admin", "everything")

    asyncio.run(main())


def test_an_auditor_without_mtls_starts_and_takes_no_order(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            ready = await cluster.start(ServiceRole.AUDITOR)
            order = AdminOrder(rid=1, what="audit")
            admin = settings_of("admin")
            with pytest.raises(StartRefused, match="admin_not_tls"):
                await asyncio.to_thread(ordered, admin, ready["internal"], order, 60.0)

    asyncio.run(main())
    assert "it takes no order: admin operations need mTLS" in capfd.readouterr().err


def test_a_command_without_a_certificate_asks_nobody() -> None:
    with pytest.raises(StartRefused) as raised:
        ordered(Settings(), "127.0.0.1:1", AdminOrder(rid=1, what="audit"), 1.0)
    assert raised.value.code == "admin_certificate_missing"


def test_an_auditor_that_is_not_there() -> None:
    with pytest.raises(AuditorUnreachable):
        ordered(settings_of("admin"), "127.0.0.1:1", AdminOrder(rid=1, what="audit"), 20.0)


@pytest.mark.parametrize(
    ("listens", "dialled"),
    [
        ("127.0.0.1:7008", "127.0.0.1:7008"),
        ("0.0.0.0:7008", "127.0.0.1:7008"),
        ("[::]:9", "[::1]:9"),
        ("10.0.0.9:7008", "10.0.0.9:7008"),
    ],
)
def test_where_the_auditor_is_looked_for(listens: str, dialled: str) -> None:
    settings = read_settings({"QIM_AUDITOR_LISTEN": listens}).require()
    assert auditor_address(settings) == dialled
