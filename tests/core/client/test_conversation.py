"""The rules of a conversation's row, one by one: marks forward only, states by (version, device), floors, counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qim.core.client import conversation as rules
from qim.core.client.conversation import CountedRow
from qim.core.contract.entities import MessageKind
from qim.core.contract.kinds import StateFlag, Tombstone
from qim.core.contract.sequences import U64_MAX
from qim.core.contract.user_state import (
    UserState,
    decode_user_state,
    encode_user_state,
    is_hidden,
    is_muted,
)
from qim.core.ports.local_sessions import ListedConversation, SyncedState
from qim.core.ports.local_store import LocalConversation, LocalMessage

CHAT = bytes(15) + b"\x01"
ME = 1
ROW = LocalConversation(conversation_id=CHAT)


def message(seq: int, **more: object) -> LocalMessage:
    fields: dict[str, object] = {
        "message_id": seq.to_bytes(16, "big"),
        "conversation_id": CHAT,
        "conversation_kind": 1,
        "conversation_seq": seq,
        "last_activity_id": seq.to_bytes(16, "big"),
        "kind": 1,
        "sender_id": 2,
        "client_message_id": None,
        "custom_type": "",
        "body": b"x",
        "tombstone": 0,
        "sent_at": 1,
        "peer_user_id": 1,
        "trace_id": 1,
    }
    return LocalMessage(**(fields | more))  # type: ignore[arg-type]


def state(version: int, device: bytes = b"d", read_seq: int = 0, flags: int = 1) -> SyncedState:
    return SyncedState(
        conversation_id=CHAT,
        version=version,
        device_id=device,
        read_seq=read_seq,
        flags=flags,
        value=b"",
    )


def entry(**more: object) -> ListedConversation:
    fields: dict[str, object] = {
        "conversation_id": CHAT,
        "conversation_kind": 1,
        "peer_user_id": 2,
        "last_activity_id": bytes(15) + b"\x09",
        "head": message(9),
        "unread": 1,
        "unread_exact": True,
        "read_seq": 4,
        "version": 0,
        "flags": 0,
        "value": b"",
    }
    return ListedConversation(**(fields | more))  # type: ignore[arg-type]


def test_a_mark_moves_forward_only_whoever_says_it() -> None:
    row = rules.marked(ROW, 7)
    assert rules.marked(row, 3).read_seq == 7
    assert rules.synced(row, state(0, read_seq=3)).read_seq == 7
    assert rules.synced(row, state(0, read_seq=9)).read_seq == 9
    assert rules.listed(row, entry(read_seq=3)).read_seq == 7
    assert rules.listed(row, entry(read_seq=9)).read_seq == 9


def test_what_is_unsent() -> None:
    row = rules.marked(ROW, 7)
    unsent = rules.unsent_of(row)
    assert unsent is not None
    assert (unsent.read_seq, unsent.version) == (7, 0)
    assert rules.unsent_of(rules.sent(row, 6, 0)) is not None
    assert rules.unsent_of(rules.sent(row, 7, 0)) is None
    assert rules.unsent_of(rules.synced(row, state(0, read_seq=7))) is None
    back = rules.listed(rules.sent(row, 7, 0), entry(read_seq=4))
    assert rules.unsent_of(back) is not None, "the list has a lower mark than we believed"


def test_an_own_state_wins_over_what_it_saw_and_is_unsent_until_that_version_is() -> None:
    row = rules.synced(ROW, state(50, b"z"))
    new = rules.changed(row, 10, b"a", StateFlag.MUTED, b"v")
    assert (new.version, new.device_id, new.flags) == (51, b"a", StateFlag.MUTED)
    unsent = rules.unsent_of(new)
    assert unsent is not None
    assert (unsent.version, unsent.value) == (51, b"v")
    assert not rules.sent(new, 0, 50).state_sent
    assert rules.sent(new, 0, 51).state_sent


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([b"a", b"b"]), st.integers(0, 3))))
def test_states_come_in_any_order_to_the_same_end(changes: list[tuple[int, bytes, int]]) -> None:
    unique = {(version, device): flags for version, device, flags in changes}
    states = [state(v, d, flags=f) for (v, d), f in unique.items()]
    forward = backward = ROW
    for one in states:
        forward = rules.synced(forward, one)
    for one in reversed(states):
        backward = rules.synced(backward, one)
    assert forward == backward


def test_a_floor_is_set_by_the_mailbox_and_lowered_by_pages_that_reach_it() -> None:
    row = rules.met(ROW, [message(5), message(6)], contiguous=True, anchors=True)
    assert (row.floor, row.anchor, row.peers) == (4, 6, (2, 1))
    assert rules.met(row, [message(3)], contiguous=True, anchors=True).floor == 4
    assert rules.met(ROW, [message(5)], contiguous=False, anchors=False).floor is None
    assert rules.covered(row, 1, 3, U64_MAX).floor == 4, "a hole stays between"
    assert rules.covered(row, 1, 4, U64_MAX).floor == 1
    assert rules.covered(row, 0, U64_MAX, U64_MAX).floor == 0
    assert rules.covered(row, 5, U64_MAX, U64_MAX).floor == 4
    assert rules.covered(ROW, 3, 9, U64_MAX).floor is None
    assert rules.covered(ROW, 3, U64_MAX, U64_MAX).floor == 3
    assert rules.covered(row, 0, 0, U64_MAX) == row, "a page that covers nothing"


def test_an_overlay_does_not_raise_the_conversation() -> None:
    row = rules.met(ROW, [message(5)], contiguous=True, anchors=True)
    recall = message(6, kind=MessageKind.RECALL, body=(5).to_bytes(8, "big"))
    again = rules.met(row, [recall], contiguous=True, anchors=True)
    assert (again.last_activity_id, again.anchor) == (row.last_activity_id, 6)


def test_a_list_without_news_is_a_floor() -> None:
    row = rules.listed(ROW, entry(head=message(4), read_seq=4, unread=0))
    assert row.floor == 4
    assert not rules.is_unfilled(row)
    assert rules.is_unfilled(rules.listed(ROW, entry(read_seq=4, unread=0))), "own ones beyond"
    assert rules.is_unfilled(rules.listed(ROW, entry(head=None, unread=0, unread_exact=False)))


def test_a_mark_alone_needs_nothing() -> None:
    assert not rules.is_unfilled(rules.marked(ROW, 7))


def test_doubt_only_where_both_think_they_know() -> None:
    row = rules.listed(replace(ROW, floor=0), entry(read_seq=4))
    assert rules.doubted(row, entry(read_seq=4), (2, True))
    assert not rules.doubted(row, entry(read_seq=4), (1, True))
    assert not rules.doubted(rules.marked(row, 6), entry(read_seq=4), (2, True))
    assert not rules.doubted(replace(row, floor=5), entry(read_seq=4), (2, True))
    doubtful = replace(row, doubtful=True)
    assert rules.is_unfilled(doubtful)
    assert not rules.covered(doubtful, 4, U64_MAX, U64_MAX).doubtful
    assert rules.covered(doubtful, 5, U64_MAX, U64_MAX).doubtful


@pytest.mark.parametrize(
    ("kind", "body", "tombstone", "expected"),
    [
        (MessageKind.TEXT, b"x", 0, None),
        (MessageKind.RECALL, (7).to_bytes(8, "big"), 0, (7, rules.RECALLED)),
        (MessageKind.DELETE_FOR_ME, (7).to_bytes(8, "big"), 0, (7, rules.DELETED)),
        (MessageKind.RECALL, b"short", 0, None),
        (MessageKind.RECALL, None, 0, None),
        (MessageKind.TEXT, None, Tombstone.RECALLED, (5, rules.RECALLED)),
        (MessageKind.TEXT, None, Tombstone.EXPIRED, (5, rules.GONE)),
        (MessageKind.TEXT, None, 99, None),
    ],
)
def test_overlays(
    kind: int, body: bytes | None, tombstone: int, expected: tuple[int, int] | None
) -> None:
    assert rules.overlay_of(message(5, kind=kind, body=body, tombstone=tombstone)) == expected


rows = st.lists(
    st.builds(
        CountedRow,
        st.integers(1, 3),
        st.sampled_from([int(kind) for kind in MessageKind]),
        st.sampled_from([0, rules.RECALLED, rules.DELETED]),
    ),
    max_size=12,
)


@given(rows, st.integers(1, 10))
def test_the_window_decides(found: list[CountedRow], window: int) -> None:
    """An independent reading of the definition (pipeline §4)."""
    count, exact = rules.unread_of(found, ME, window)
    if len(found) > window:
        assert (count, exact) == (window, False)
        return
    wanted = 0
    for row in found:
        foreign, plain = row.sender_id != ME, row.kind in (1, 2)
        wanted += foreign and plain and row.hidden == 0
    assert (count, exact) == (wanted, True)


def test_user_states_survive_the_wire_and_strangers() -> None:
    full = UserState(mute_until=5, marked_unread=True, hidden_through=b"h" * 16, draft="to bé")
    assert decode_user_state(encode_user_state(full)) == full
    assert encode_user_state(UserState()) == b""
    assert decode_user_state(b"") == UserState()
    for alien in (b"\xc1", b"\x91\xa1a", b"hello"):
        assert decode_user_state(alien) == UserState()
    with pytest.raises(ValueError, match="shorten the draft"):
        encode_user_state(UserState(draft="x" * 1024))


def test_muted_ends_in_time_and_hidden_by_news() -> None:
    for_a_while = encode_user_state(UserState(mute_until=100))
    assert is_muted(StateFlag.MUTED, b"", 10**15)
    assert is_muted(StateFlag.MUTED, for_a_while, 99)
    assert not is_muted(StateFlag.MUTED, for_a_while, 100)
    assert not is_muted(StateFlag.PINNED, for_a_while, 99)
    then = encode_user_state(UserState(hidden_through=b"\5" * 16))
    assert is_hidden(StateFlag.ARCHIVED, then, b"\5" * 16)
    assert not is_hidden(StateFlag.ARCHIVED, then, b"\6" * 16)
    assert is_hidden(StateFlag.ARCHIVED, b"", b"\6" * 16)
    assert not is_hidden(0, then, b"\5" * 16)
