"""What an operator sees: one grep shows a message's way, nothing secret or private is ever written, numbers parse."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from qim.core.contract.frames import (
    Auth,
    AuthOk,
    CreateGroup,
    GroupOk,
    Ping,
    PullMailbox,
    PushEvents,
    SendAck,
)
from qim.core.contract.ids import dedupe_key
from qim.core.contract.invariants import Invariant
from qim.core.contract.wire import encode_raw
from qim.services.metrics_table import METRICS
from tests.integration.raw_client import (
    Bystanders,
    RawClient,
    message,
    new_key,
    next_attempt,
    soon,
    token,
)
from tests.integration.served import CANARY, Served, eventually

USER, PEER = 801, 802
LABELS_MAX = 64


@pytest.fixture(params=["json", "text"])
def talkative(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A server with either form of log line."""
    server = Served(tmp_path / "data", "--log-format", request.param)
    try:
        server.start()
        yield server
    finally:
        server.close()


def test_one_grep_of_a_trace_id_shows_all_stages(talkative: Served) -> None:
    async def main() -> str:
        async with (
            await RawClient.log_in(talkative.target, USER) as sender,
            await RawClient.log_in(talkative.target, PEER) as peer,
        ):
            sent = message(CANARY, peer_user_id=PEER)
            await sender.ask(sent, SendAck)
            (entry,) = (await peer.until(PushEvents)).entries
            key = dedupe_key("default", USER, sent.client_message_id)
            trace = f"{entry.trace_id:016x}"
            assert trace == key[:8].hex()
            return trace

    trace = asyncio.run(main())

    def grep() -> list[str]:
        return [line for line in talkative.log().splitlines() if trace in line]

    stages = ("RECORDED", "OUTBOXED", "COMMITTED", "DISPATCHED", "MAILBOXED", "PUSHED")
    asyncio.run(eventually(lambda: all(any(stage in one for one in grep()) for stage in stages)))
    lines = grep()
    first = {stage: next(at for at, one in enumerate(lines) if stage in one) for stage in stages}
    # The mark and the fanout both follow the append and know nothing of each other: under load either may be first.
    for way in (("RECORDED", "OUTBOXED", "COMMITTED"), ("OUTBOXED", "DISPATCHED", "MAILBOXED")):
        order = [first[stage] for stage in way]
        assert order == sorted(order), lines
    assert first["DISPATCHED"] < first["PUSHED"], lines


async def planted(served: Served) -> list[bytes]:
    """Canaries in every field a client can fill; the secrets that were at work meanwhile."""
    text = CANARY.decode()
    secret = served.target.secret
    good = token(secret, USER)
    async with (
        Bystanders.of(served.target) as others,
        await RawClient.connect(served.tcp) as client,
    ):
        auth = Auth(
            access_token=good,
            device_id=CANARY,
            attempt=next_attempt(),
            client_info=text,
            capabilities=(text,),
        )
        for bad in (good[:-1], f"{good}{text}", text):
            refused = Auth(access_token=bad, device_id=CANARY, attempt=next_attempt())
            async with await RawClient.connect(served.tcp) as other:
                await other.refused(refused)
        ok = await client.ask(auth, AuthOk)
        await client.ask(message(CANARY, peer_user_id=PEER, custom_type=text), SendAck)
        create = CreateGroup(
            client_message_id=new_key(),
            not_after=soon(),
            members=(PEER,),
            name=text,
            meta=CANARY,
        )
        await client.ask(create, GroupOk)
        for bad_frame in (
            message(CANARY, peer_user_id=PEER, custom_type=text * 9),
            message(CANARY, peer_user_id=PEER, not_after=1),
            message(CANARY, conversation_id=CANARY.ljust(16)[:16]),
            PullMailbox(cursor=CANARY),
        ):
            await client.refused(bad_frame)
        client.say_bytes(encode_raw(Ping.OPCODE, b"\x91\xa9" + CANARY, request=9))
        await client.rest()
        await others.go_on()
        return [good.encode(), secret, ok.cursor, *(one.encode() for one in good.split("."))]


def test_nothing_secret_or_private_is_ever_logged(served: Served) -> None:
    """Of frames that are good, bad, refused and malformed."""
    secrets = asyncio.run(planted(served))
    assert served.get("/livez")[0] == 200
    logged = served.log()
    raw = served.data.with_suffix(".log").read_bytes()
    for hidden in (CANARY, *secrets):
        if hidden != b"qim1":
            assert hidden not in raw
        assert hidden.hex() not in logged
    served.judge()


def test_log_lines_are_json_with_the_same_four_fields(served: Served) -> None:
    asyncio.run(_exchange(served))
    # Lines gather for a moment before they are written.
    asyncio.run(eventually(lambda: bool(served.log_records())))
    records = served.log_records()
    for record in records:
        assert {"time", "level", "service", "event"} <= set(record), record


def test_metrics_parse_and_stay_few(served: Served) -> None:
    asyncio.run(_exchange(served))
    status, text = served.get("/metrics")
    assert status == 200
    families = list(text_string_to_metric_families(text))
    assert len(families) > 20
    for family in families:
        assert family.name.startswith("qim_"), family.name
        assert not family.name.endswith("_us"), family.name
        labels = {
            tuple(one.labels[key] for key in one.labels if key != "le") for one in family.samples
        }
        assert len(labels) <= LABELS_MAX, family.name
        if family.type == "counter":
            assert all(one.name.endswith("_total") for one in family.samples), family.name
    for invariant in Invariant:
        short = invariant.value.removesuffix("_total").removesuffix("_count")
        assert served.metric(f"qim_{short}_total") == 0.0, invariant
    assert served.metric("qim_stage_total", "COMMITTED") > 0


def test_a_loaded_server_exposes_what_the_table_knows_as_it_says(served: Served) -> None:
    async def main() -> None:
        async with (
            await RawClient.log_in(served.target, USER) as sender,
            await RawClient.log_in(served.target, PEER) as peer,
        ):
            for _ in range(20):
                await sender.send(b"load", peer_user_id=PEER)
            await peer.until(PushEvents)
            await peer.pull()
            await sender.create_group((PEER,))

    asyncio.run(main())
    _, text = served.get("/metrics")
    exposed = {
        family.name.removeprefix("qim_"): family for family in text_string_to_metric_families(text)
    }
    unknown = set(exposed) - set(METRICS)
    assert not unknown, sorted(unknown)
    for name, family in exposed.items():
        told = METRICS[name]
        assert (family.type, family.documentation) == (told.kind.value, told.meaning), name
        labels = {key for one in family.samples for key in one.labels} - {"le"}
        assert labels == ({told.label} if told.label else set()), name
    stages = {one.labels["stage"] for one in exposed["stage_seconds"].samples}
    assert {"RECORDED", "OUTBOXED", "COMMITTED", "DISPATCHED", "MAILBOXED", "PUSHED"} <= stages
    asyncio.run(eventually(lambda: served.metric("qim_stage_total", "ARCHIVED") >= 20))
    asyncio.run(eventually(lambda: served.metric("qim_stage_total", "PROJECTED") >= 20))
    queues = {one.labels["queue"] for one in exposed["queue_depth"].samples}
    assert queues == {one.labels["queue"] for one in exposed["queue_capacity"].samples}
    machines = {"writer", "fanout", "mailbox", "session", "archiver", "gateway"}
    assert {queue.split(".")[0] for queue in queues} == machines
    for name in ("port_seconds", "log_transit_seconds", "step_seconds", "inbox_wait_seconds"):
        assert exposed[name].samples, name


def test_a_pushed_message_is_counted_once(served: Served) -> None:
    async def main() -> float:
        async with (
            await RawClient.log_in(served.target, USER + 10) as sender,
            await RawClient.log_in(served.target, PEER + 10) as peer,
        ):
            before = served.metric("qim_stage_total", "PUSHED")
            await sender.send(b"once", peer_user_id=PEER + 10)
            await peer.until(PushEvents)
            return before

    before = asyncio.run(main())
    # The sender's own device may get its copy as another push of the same message.
    assert 1 <= served.metric("qim_stage_total", "PUSHED") - before <= 2


def test_health_and_unknown_paths(served: Served) -> None:
    for path in ("/healthz", "/readyz", "/livez"):
        status, body = served.get(path)
        assert status == 200, path
        assert json.loads(body)["ok"] is True
    assert served.get("/nothing")[0] == 404
    assert served.get("/audit")[0] == 405
    assert served.delivered()["verdict"] == "CLEAN"


def test_callers_that_hang_or_talk_nonsense_delay_no_scrape(served: Served) -> None:
    host, _, port = served.ready["metrics"].rpartition(":")
    hanging = [socket.create_connection((host, int(port))) for _ in range(40)]
    try:
        for number, one in enumerate(hanging):
            one.sendall(
                [b"", b"GET /metrics", b"\0\xff\0\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"][
                    number % 4
                ]
            )
        assert served.get("/livez")[0] == 200
        assert served.get("/metrics")[0] == 200
    finally:
        for one in hanging:
            one.close()
    served.judge()


async def _exchange(served: Served) -> None:
    async with Bystanders.of(served.target) as others:
        await others.go_on()
