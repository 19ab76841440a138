"""Runs of `qim load` that can't begin say why and have an end; and what a run that holds has looked at."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from qim.client.load import device, run
from qim.client.load.run import LoadPlan, LoadReport, LoadRun, NotBegun
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import Auth, ClientFrame, CreateGroup, PullMailbox, SendMessage
from qim.core.contract.params import DAY_MS
from qim.core.contract.tokens import verify_token
from tests.client.scripted_server import LIMITS, ScriptedServer

PLAN = LoadPlan(servers=(), secret=b"s" * 32, users=2, rate=20.0, seconds=0.3, warmup=0.0)
GROUPS = {"group_count": 1, "group_size": 2}


def carried_out(server: ScriptedServer, **changes: Any) -> LoadReport:
    """The report of a small load towards it."""

    async def main() -> LoadReport:
        async with server:
            return await LoadRun(replace(PLAN, servers=(server.address,), **changes)).run()

    return asyncio.run(main())


def not_begun(server: ScriptedServer, **changes: Any) -> NotBegun:
    with pytest.raises(NotBegun) as raised:
        carried_out(server, **changes)
    return raised.value


def test_users_that_are_refused_are_told_with_the_code_and_not_waited_for() -> None:
    server = ScriptedServer()
    server.refuse[Auth] = ErrorCode.UNAUTHENTICATED
    why = not_begun(server)
    assert why.refused
    assert str(why).startswith("0 of 2 users came online at 127.0.0.1:")
    assert "(UNAUTHENTICATED " in str(why)


def test_users_that_get_no_answer_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CONNECT_SECONDS_MAX", 0.05)
    server = ScriptedServer()
    server.silent.add(Auth)
    assert not not_begun(server).refused


def test_a_group_that_is_refused_is_told_with_the_code() -> None:
    server = ScriptedServer()
    server.refuse[CreateGroup] = ErrorCode.FORBIDDEN
    why = not_begun(server, **GROUPS)
    assert why.refused
    assert str(why) == "0 of 1 groups were made, then the server refused one: FORBIDDEN"


def test_a_group_that_gets_no_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "GROUP_SECONDS_MAX", 0.05)
    server = ScriptedServer()
    server.silent.add(CreateGroup)
    why = not_begun(server, **GROUPS)
    assert (str(why), why.refused) == ("0 of 1 groups were made, then none within 0.05 s", False)


class Mailing(ScriptedServer):
    """Puts what is sent into the mailbox of everybody; ``again``: its last message once more, when both have read it."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self._again = again
        self._readers = 0

    def _answer(self, frame: ClientFrame) -> Any:
        if isinstance(frame, SendMessage) and frame.client_message_id not in self.sent:
            self.deliver(len(self.mailbox) + 1, frame.body)
        answer = super()._answer(frame)
        if isinstance(frame, PullMailbox) and answer.entries:
            self._readers += 1
            if self._again and self._readers == 2:
                self.deliver(len(self.mailbox) + 1, self.mailbox[-1].body or b"")
        return answer


def test_a_run_that_holds() -> None:
    report = carried_out(Mailing(again=False))
    assert report.holds
    assert report.verdict["acked"] == report.verdict["sent"] == 6
    assert not [why for why in report.incomplete_because if "generator" not in why]


def test_a_second_copy_behind_all_that_was_owed_is_seen() -> None:
    """Nobody pushes: the devices pull once a second, and all that was acked is there with their first pull."""
    report = carried_out(Mailing(again=True))
    assert report.verdict["lost"] == 0
    assert report.verdict["doubled"] == 2, "once on either device"
    assert not report.holds


def test_a_mailbox_that_could_not_be_read_to_its_end_makes_the_run_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "READ_SECONDS_MAX", 0.05)
    server = Mailing(again=False)

    class Silent(LoadRun):
        async def _settle(self) -> None:
            await super()._settle()
            server.silent.add(PullMailbox)

    async def main() -> LoadReport:
        async with server:
            return await Silent(replace(PLAN, servers=(server.address,))).run()

    report = asyncio.run(main())
    assert "2 mailboxes could not be read to their end once more" in report.incomplete_because


def test_what_is_sent_after_hours_is_offered_as_at_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """not_after counts from the send: counted from the login, every send of the second hour would be refused."""
    hours_us = 2 * 3_600 * 1_000_000
    late = False

    def now_us() -> int:
        return device_now() + (hours_us if late else 0)

    device_now = device.now_us
    monkeypatch.setattr(device, "now_us", now_us)
    server = Mailing(again=False)

    class Late(LoadRun):
        async def _send_for(self, seconds: float, phase: str, *, storms: int = 0) -> None:
            nonlocal late
            late = True
            await super()._send_for(seconds, phase, storms=storms)

    async def main() -> None:
        async with server:
            await Late(replace(PLAN, servers=(server.address,))).run()

    began = server._auth_ok().server_time
    asyncio.run(main())
    ends = [frame.not_after for frame in server.heard if isinstance(frame, SendMessage)]
    assert min(ends) >= began + hours_us // 1000 + LIMITS.not_after_ms


def test_what_was_due_while_the_generator_stood_still_is_done_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its machine was busy until the end of the run: sends were made up for, storms and cuts left out."""
    times = iter([0])

    def now_us() -> int:
        return next(times, 3_600 * 1_000_000)

    monkeypatch.setattr(run, "now_us", now_us)
    report = carried_out(Mailing(again=False), storms=2)
    assert report.counts["storms"] == 2
    assert report.verdict["acked"] == report.verdict["sent"] == int(PLAN.rate * PLAN.seconds)
    assert not [why for why in report.incomplete_because if "storms" in why]


@pytest.mark.parametrize("name", ["warmup", "reconnects", "storms", "slow", "group_count"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_numbers_that_make_no_run(name: str, value: float) -> None:
    assert f"{name} is a number of 0 or more" in replace(PLAN, **{name: value}).faults()


def test_tokens_outlast_the_longest_run() -> None:
    """A connection ends with its token: after a day nobody would have read what was acked, and the verdict were 'lost'."""
    server = Mailing(again=False)
    days = 3 * DAY_MS // 1000
    carried_out(server, settle=float(days))
    (auth, _) = [frame for frame in server.heard if isinstance(frame, Auth)]
    ending = time.time_ns() // 1_000_000 + days * 1000
    assert verify_token(auth.access_token, PLAN.secret, now_ms=ending).user_id
