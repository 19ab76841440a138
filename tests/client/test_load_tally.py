"""The tally of `qim load` sees what a lossy server would do to its messages."""

import pytest

from qim.client.load.tally import ACKED, REFUSED, Stream, Tally
from qim.core.contract.frames import MailboxEntry

SALT = b"salt"
CHAT = b"c" * 16


def entry(body: bytes | None, seq: int) -> MailboxEntry:
    return MailboxEntry(
        mailbox_seq=seq,
        event_id=b"e" * 16,
        message_id=b"m" * 16,
        conversation_id=CHAT,
        conversation_seq=seq,
        last_activity_id=b"l" * 16,
        kind=1,
        sender_id=1,
        custom_type="",
        body=body,
        sent_at=0,
        trace_id=1,
    )


@pytest.fixture
def stream() -> Stream:
    return Stream(number=0, sender=0, peer=2, group=None, recipients=(0, 1))


@pytest.fixture
def tally(stream: Stream) -> Tally:
    tally = Tally([stream], SALT)
    tally.measuring = True
    return tally


def sent(tally: Tally, stream: Stream, count: int, outcome: int = ACKED) -> list[bytes]:
    bodies = [tally.body(stream, 1_000 * n, 64) for n in range(count)]
    for body in bodies:
        tally.settled(body, outcome, 500_000)
    return bodies


def test_all_there(tally: Tally, stream: Stream) -> None:
    for seq, body in enumerate(sent(tally, stream, 3), start=1):
        assert len(body) == 64
        for device in (0, 1):
            tally.delivered(device, entry(body, seq), 700_000)
    verdict = tally.verdict()
    assert (verdict.acked, verdict.expected, verdict.delivered) == (3, 6, 6)
    assert verdict.holds()
    assert tally.latency["end_to_end"].get_total_count() == 3, (
        "the sender's own copy is no delivery"
    )
    assert tally.latency["ack"].get_max_value() >= 498_000


def test_an_acked_message_that_one_recipient_lacks_is_lost(tally: Tally, stream: Stream) -> None:
    first, second = sent(tally, stream, 2)
    tally.delivered(0, entry(first, 1), 1)
    tally.delivered(0, entry(second, 2), 1)
    tally.delivered(1, entry(second, 2), 1)
    assert tally.verdict().lost == tally.missing() == 1
    assert not tally.verdict().holds()


def test_what_was_refused_or_is_open_is_owed_to_nobody(tally: Tally, stream: Stream) -> None:
    sent(tally, stream, 2, REFUSED)
    tally.body(stream, 0, 64)
    verdict = tally.verdict()
    assert (verdict.refused, verdict.unsettled, verdict.lost, verdict.expected) == (2, 1, 0, 0)


def test_an_unanswered_message_may_arrive(tally: Tally, stream: Stream) -> None:
    body = tally.body(stream, 0, 64)
    tally.delivered(1, entry(body, 1), 1)
    tally.delivered(0, entry(body, 1), 1)
    assert tally.verdict().holds()


def test_twice_is_doubled(tally: Tally, stream: Stream) -> None:
    (body,) = sent(tally, stream, 1)
    for _ in range(2):
        tally.delivered(1, entry(body, 1), 1)
    assert tally.verdict().doubled == 1


def test_a_seq_that_goes_back_is_out_of_order(tally: Tally, stream: Stream) -> None:
    first, second = sent(tally, stream, 2)
    tally.delivered(1, entry(second, 2), 1)
    tally.delivered(1, entry(first, 1), 1)
    assert tally.verdict().reordered == 1


def test_a_stranger_that_gets_it_is_told(tally: Tally, stream: Stream) -> None:
    (body,) = sent(tally, stream, 1)
    tally.delivered(7, entry(body, 1), 1)
    assert tally.verdict().foreign == 1


def test_bodies_of_others_are_none_of_ours(tally: Tally) -> None:
    tally.delivered(1, entry(b"hello", 1), 1)
    tally.delivered(1, entry(None, 2), 1)
    assert tally.verdict().delivered == 0


def test_an_ack_counts_once(tally: Tally, stream: Stream) -> None:
    (body,) = sent(tally, stream, 1)
    tally.settled(body, ACKED, 1)
    assert tally.verdict().acked == 1
