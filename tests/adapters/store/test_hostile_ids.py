"""Ids, names and bodies are bytes or text of any shape: nothing leaves its place, meets another, or changes on its way."""

import itertools

import pytest

from qim.adapters.redis import codec
from qim.core.contract.entities import MembershipOp
from qim.core.ports import store_mailbox as mailbox
from qim.core.ports.store_message import Fresh
from qim.core.ports.store_reads import ReadBodies
from tests.adapters.store.requests import (
    NOW,
    Box,
    Shard,
    grouped,
    mid,
    single,
    step,
    stored_as,
)
from tests.adapters.store.samples import KINDS, sample
from tests.adapters.store.servers import Store, ask

IDS = [
    b"\x00" * 16,
    b"\xff" * 16,
    b"\x00" * 15 + b"\x01",
    b"\r\n$-1\r\n*0\r\nPING\n",
    b"qim:incarnation\x00",
    bytes(range(16)),
    bytes(range(240, 256)),
    b"[(+-" * 4,
]
TENANTS = ["", "t", "t\x00", "tt", "\x00", "ünï", "\U0001f600" * 16, "t\r\n", "t:1", "*"]


def test_every_byte_value_in_ids_and_bodies(store: Store) -> None:
    shard = Shard(store)
    body = bytes(range(256)) * 3
    for number, conversation_id in enumerate(IDS, start=1):
        item = single(
            number,
            conversation_id=conversation_id,
            dedupe_key=conversation_id,
            request_digest=conversation_id[::-1],
            record=body + b"%d" % number,
        )
        assert shard.reserve(item) == (Fresh(conversation_seq=1, last_activity_id=mid(number)),)
        (existing,) = shard.reserve(item)
        assert existing.conversation_id == conversation_id
        assert existing.request_digest == conversation_id[::-1]
        assert existing.stored == stored_as(item, 1, mid(number))
    assert len(shard.pending()) == len(IDS)
    for conversation_id in IDS:
        assert shard.membership(conversation_id).kind == 1
        assert shard.history(conversation_id=conversation_id).stored == ()


def test_names_meta_and_users_of_any_value(store: Store) -> None:
    shard = Shard(store)
    users = tuple(sorted({0, (1 << 64) - 1, *[1 << n for n in range(64)]}))
    for number, conversation_id in enumerate(IDS, start=1):
        write = step(1, MembershipOp.CREATE, users, name="\x00ü\U0001f600", meta=bytes(range(256)))
        item = grouped(number, 0, b"", conversation_id=conversation_id)
        shard.change(number, write, conversation_id=conversation_id)
        read = shard.membership(conversation_id)
        assert (read.name, read.meta) == ("\x00ü\U0001f600", bytes(range(256)))
        assert tuple(m.user_id for m in read.version.members) == users
        assert item.conversation_id == read.version.conversation_id


def test_tenants_and_users_share_no_mailbox(store: Store) -> None:
    box = Box(store)
    users = [0, 1, 0x7474, (1 << 64) - 1]
    everyone = list(itertools.product(TENANTS, users))
    rows = [
        mailbox.MailboxRow(tenant, user, 20_000, 1000 + n, b"\xff%d" % n)
        for n, (tenant, user) in enumerate(everyone)
    ]
    box.append(999, 1000 + len(rows), *rows, days=((20_000, 1000),))
    for n, (tenant, user) in enumerate(everyone):
        assert box.read(user, 999, tenant_id=tenant).entries == (b"\xff%d" % n,)
    many = box.ask(mailbox.TrimMailbox, day=20_000, to=1000 + len(rows), limit=1000)
    assert not many.more
    assert not [k for k in store.dump() if k.startswith((b"mb:", b"mu:"))]


def test_devices_gateways_and_tenants_of_presence(store: Store) -> None:
    Box(store)
    devices = [b"", b"\x00", bytes(range(256)), b"d" * 64, *IDS]
    gateway = "[::1]:9000/\x00ü"
    for number, (tenant, device) in enumerate(itertools.product(sorted(set(TENANTS)), devices)):
        entered = ask(
            store,
            mailbox.EnterPresence(
                op=1,
                tenant_id=tenant,
                user_id=7,
                device_id=device,
                gateway=gateway,
                conn=(1 << 53) - number,
                attempt=1,
                now_wall=NOW,
                ttl_ms=1000,
            ),
        )
        assert entered.replaced is None
    for tenant in set(TENANTS):
        read = ask(store, mailbox.ReadPresence(op=1, now_wall=NOW, users=((tenant, 7),)))
        assert [e.device_id for e in read.entries[0]] == sorted(devices)
        assert {e.gateway for e in read.entries[0]} == {gateway}


def test_a_row_may_begin_with_the_greatest_byte(store: Store) -> None:
    """Range ends are successors, not a guess at what no entry begins with."""
    box = Box(store)
    rows = [mailbox.MailboxRow("t", 1, 20_000, seq, b"\xff" * 20) for seq in (1000, 1001, 1002)]
    box.append(999, 1001, *rows, days=((20_000, 1000),))
    assert box.read(1, 999).entries == (b"\xff" * 20,) * 2
    shard = Shard(store)
    item = single(5, record=b"\xff" * 50)
    shard.reserve(item, single(6))
    assert shard.pending()[0] == stored_as(item, 1, mid(5))
    assert ask(store, ReadBodies(op=1, names=((item.conversation_id, 1, mid(5)),))).stored == (
        None,
    ), "bytes no version can decode are nobody's body"


@pytest.mark.parametrize("length", [0, 15, 17])
def test_ids_of_another_width_are_our_own_bug(length: int) -> None:
    short = b"x" * length
    for item in (
        single(1, dedupe_key=short),
        single(1, message_id=short),
        single(1, conversation_id=short),
        single(1, request_digest=short),
    ):
        kind = next(kind for kind in KINDS if kind.__name__ == "ReserveAndRecord")
        with pytest.raises(AssertionError):
            codec.encode(sample(kind, items=(item,)))


def test_numbers_out_of_range_are_our_own_bug() -> None:
    with pytest.raises(OverflowError):
        codec.encode(sample(KINDS[0], epoch=1 << 64))
    with pytest.raises(OverflowError):
        codec.encode(sample(KINDS[0], epoch=-1))
