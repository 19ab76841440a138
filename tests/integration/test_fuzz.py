"""Thousands of mutated frames on many connections: the server survives, leaks nothing and serves the others (BR-086)."""

import asyncio
import random
from typing import Any

import msgspec

from qim.core.contract.frames import (
    Auth,
    CreateGroup,
    GroupAdd,
    GroupRemove,
    LeaveGroup,
    Members,
    Ping,
    PullHistory,
    PullMailbox,
    SendMessage,
    SyncComplete,
    WireFrame,
    encode_frame,
)
from qim.core.contract.wire import HEADER, HEADER_BYTES
from tests.integration.raw_client import Bystanders, RawClient, next_attempt, soon, token
from tests.integration.served import CANARY, Served, eventually, streams_open

SEED = 20261129
FRAMES_FUZZED = 10_000
CONNECTIONS_AT_ONCE = 20
FRAMES_A_CONNECTION = 5
USERS = range(7_001, 7_040)


def good_frames(dice: random.Random, secret: bytes, cursor: bytes) -> list[WireFrame]:
    """What a client may say, with ids that nobody else has."""
    key = dice.randbytes(16)
    conversation = dice.randbytes(16)
    user = dice.choice(USERS)
    return [
        Ping(client_time=dice.getrandbits(63)),
        SyncComplete(sync_to_seq=dice.getrandbits(64)),
        Auth(access_token=token(secret, user), device_id=b"f", attempt=next_attempt()),
        SendMessage(
            client_message_id=key,
            conversation_id=None,
            peer_user_id=user,
            kind=1,
            custom_type="t",
            body=CANARY + dice.randbytes(dice.randrange(2000)),
            retention_class=0,
            not_after=soon(),
        ),
        PullMailbox(cursor=cursor, up_to_seq=dice.getrandbits(64), limit=dice.getrandbits(16)),
        PullHistory(conversation_id=conversation, anchor=0, direction=0),
        Members(conversation_id=conversation),
        CreateGroup(client_message_id=key, not_after=soon(), members=(user, user + 1), name="g"),
        GroupAdd(
            client_message_id=key, not_after=soon(), conversation_id=conversation, members=(user,)
        ),
        GroupRemove(
            client_message_id=key, not_after=soon(), conversation_id=conversation, members=(user,)
        ),
        LeaveGroup(client_message_id=key, not_after=soon(), conversation_id=conversation),
    ]


def other_value(dice: random.Random, value: Any) -> Any:
    """Another value of the same type: what decodes, and must be judged by its meaning."""
    match value:
        case bool() | None:
            return value
        case int():
            return dice.choice(
                [0, 1, 255, 2**31, 2**53 + 1, 2**63, 2**64 - 1, dice.getrandbits(40)]
            )
        case bytes():
            return dice.choice([b"", bytes(16), b"\xff" * 16, dice.randbytes(dice.randrange(600))])
        case str():
            return dice.choice(["", "\0", "é" * 40, "x" * 300, "qim.", "\ud7ff\U0010ffff"])
        case list():
            return value * dice.randrange(400) + [dice.getrandbits(20)]
        case _:
            raise AssertionError(value)


def revalued(dice: random.Random, frame: bytes) -> bytes:
    """One or two fields with other values of their types."""
    fields = msgspec.msgpack.decode(frame[HEADER_BYTES:])
    for _ in range(dice.randrange(1, 3)):
        at = dice.randrange(len(fields))
        fields[at] = other_value(dice, fields[at])
    body = msgspec.msgpack.encode(fields)
    return HEADER.pack(len(body), *HEADER.unpack_from(frame)[1:]) + body


def mutated(dice: random.Random, frame: bytes) -> bytes:
    """Bits flipped, bytes cut, doubled, replaced; lengths, opcodes and flags that lie."""
    length, opcode, flags, stream, request = HEADER.unpack_from(frame)
    body = bytearray(frame[HEADER_BYTES:])
    for _ in range(dice.randrange(3)):
        at = dice.randrange(len(body) + 1)
        match dice.randrange(6):
            case 0 if body:
                body[at % len(body)] ^= 1 << dice.randrange(8)
            case 1:
                del body[at : at + dice.randrange(8)]
            case 2:
                body[at:at] = dice.randbytes(dice.randrange(8))
            case 3:
                body[at:at] = body[: dice.randrange(64)]
            case 4:
                body[at:at] = dice.choice(
                    [b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc1"]
                )
            case _:
                body += b"\x91" * dice.randrange(200)
    length = len(body)
    match dice.randrange(12):
        case 0:
            length = dice.choice([0, 1, length + 1, length - 1 if length else 0, 2**32 - 1])
        case 1:
            opcode = dice.getrandbits(16)
        case 2:
            flags = dice.getrandbits(16)
        case 3:
            stream, request = dice.getrandbits(32), dice.getrandbits(32)
        case _:
            pass
    return HEADER.pack(length, opcode, flags, stream, request) + bytes(body)


async def fuzz_connection(served: Served, number: int) -> None:
    """One connection's worth of nonsense; what it is answered is read and only has to be readable."""
    dice = random.Random(SEED + number)
    secret = served.target.secret
    client = await RawClient.connect(served.tcp)
    cursor = b""
    if dice.random() < 0.8:
        user = dice.choice(USERS)
        await client.authenticate(served.target, user, device=b"f%d" % number)
        cursor = client.cursor
        if dice.random() < 0.8:
            await client.go_online()
    for _ in range(FRAMES_A_CONNECTION):
        frame = dice.choice(good_frames(dice, secret, cursor))
        change = dice.choice([mutated, revalued])
        client.say_bytes(change(dice, encode_frame(frame, request=dice.getrandbits(32))))
    await client.flush()
    if dice.random() < 0.5:
        await client.cut()
    else:
        client.finish()
        await client.rest()  # every answer is a frame, whatever the question was
        await client.close()


def test_mutated_frames(served: Served) -> None:
    async def main() -> None:
        async with Bystanders.of(served.target) as others:
            await others.go_on()
            numbers = iter(range(FRAMES_FUZZED // FRAMES_A_CONNECTION))

            async def worker() -> None:
                for number in numbers:
                    await fuzz_connection(served, number)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(CONNECTIONS_AT_ONCE):
                    tasks.create_task(worker())
            await others.go_on()
            await streams_open(served, 2)
            await eventually(lambda: served.metric("qim_queue_depth", "gateway.connections") == 2)
        await streams_open(served, 0)
        assert served.get("/readyz")[0] == 200
        refused = {
            label: value
            for (name, label), value in served.metrics().items()
            if name == "qim_gateway_refused_total"
        }
        assert refused["MALFORMED_FRAME"] > 100, "the mutations must have hurt"
        assert refused["INVALID_ARGUMENT"] > 500

    asyncio.run(main())
