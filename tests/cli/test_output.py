"""What is printed: JSON that keeps every number, text that can't drive a terminal."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.cli.output import (
    conversation_as_json,
    conversation_line,
    group_as_json,
    members_as_json,
    message_as_json,
    message_line,
    print_json,
    printable,
    sent_as_json,
)
from qim.client import Conversation, GroupResult, SendStatus, Sent
from qim.core.audit import AuditReport, Orphan, OrphanKind, Verdict
from qim.core.audit.vocabulary import CoveredRange
from qim.core.client.vocabulary import MembersArrived
from qim.core.contract.entities import MEMBERSHIP_CUSTOM_TYPE, MembershipDelta, MessageKind
from qim.core.ports.local_store import Coordinates, LocalMessage
from qim.services.audit_report import report_as_json, report_as_text

GREATEST = 2**64 - 1
ME = 5


def message(**changes: object) -> LocalMessage:
    plain = LocalMessage(
        message_id=b"\1" * 16,
        conversation_id=b"\2" * 16,
        conversation_kind=1,
        conversation_seq=GREATEST,
        last_activity_id=b"\3" * 16,
        kind=MessageKind.TEXT,
        sender_id=GREATEST,
        client_message_id=None,
        custom_type="",
        body=b"hello",
        tombstone=0,
        sent_at=1_700_000_000_000,
        peer_user_id=ME,
        trace_id=GREATEST,
    )
    return msgspec.structs.replace(plain, **changes)


def numbers(value: object) -> list[int]:
    if isinstance(value, dict):
        return [one for part in value.values() for one in numbers(part)]
    if isinstance(value, list):
        return [one for part in value for one in numbers(part)]
    return [value] if isinstance(value, int) else []


def test_a_message_keeps_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(message_as_json(message(), ME))
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    told = json.loads(line)
    assert told["conversation_seq"] == told["sender_id"] == str(GREATEST)
    assert told["peer_user_id"] == str(GREATEST), "the other side, seen from here"
    assert told["text"] == "hello"
    assert told["own"] is False
    assert max(numbers(told)) < 2**53


def test_a_record_of_history_names_no_kind_of_conversation() -> None:
    """HISTORY_BATCH has no field for it: null, never a number that looks like a kind."""
    assert message_as_json(message(), ME)["conversation"] == "single"
    assert message_as_json(message(conversation_kind=0), ME)["conversation"] is None


def test_a_message_without_text_still_tells_its_bytes() -> None:
    told = message_as_json(message(body=b"\xff\0", custom_type="a/b", kind=MessageKind.CUSTOM), ME)
    assert told["text"] is None
    assert told["body_base64"] == "/wA="
    gone = message_as_json(message(body=None, tombstone=1), ME)
    assert gone["text"] is None
    assert gone["tombstone"] == "expired"


def test_control_messages_say_what_they_did() -> None:
    delta = MembershipDelta(
        op=2, users=(GREATEST,), previous_version=1, version=2, digest=b"d" * 16, count=3
    )
    control = message(
        kind=MessageKind.CONTROL,
        custom_type=MEMBERSHIP_CUSTOM_TYPE,
        body=msgspec.msgpack.encode(delta),
        peer_user_id=0,
    )
    told = message_as_json(control, ME)["membership"]
    assert told["operation"] == "add"
    assert told["users"] == [str(GREATEST)]
    assert f"(added {GREATEST}; 3 members)" in message_line(control, ME)
    odd = message(kind=MessageKind.CONTROL, custom_type=MEMBERSHIP_CUSTOM_TYPE, body=b"\xc1")
    assert "membership" not in message_as_json(odd, ME)
    assert "bytes" in message_line(odd, ME)


@given(st.text())
def test_text_of_others_drives_no_terminal(text: str) -> None:
    assert printable(text).isprintable()
    line = message_line(message(body=text.encode("utf-8", "replace")), ME)
    assert line.isprintable()


def test_an_ack_has_its_coordinates_as_strings() -> None:
    at = Coordinates(
        client_message_id=b"\4" * 16,
        message_id=b"\1" * 16,
        conversation_id=b"\2" * 16,
        conversation_seq=GREATEST,
        last_activity_id=b"\3" * 16,
        sent_at=7,
    )
    sent = Sent(client_message_id=b"\4" * 16, status=SendStatus.ACKED, coordinates=at)
    assert sent_as_json(sent) == {
        "status": "acked",
        "client_message_id": "04" * 16,
        "message_id": "01" * 16,
        "conversation_id": "02" * 16,
        "conversation_seq": str(GREATEST),
        "last_activity_id": "03" * 16,
        "sent_at": 7,
    }
    failed = Sent(client_message_id=b"\4" * 16, status=SendStatus.FAILED, code="NOT_MEMBER")
    assert sent_as_json(failed)["code"] == "NOT_MEMBER"


def test_groups() -> None:
    result = GroupResult(
        conversation_id=b"\2" * 16, version=GREATEST, control_seq=GREATEST, noop=True
    )
    assert group_as_json(result)["version"] == str(GREATEST)
    answer = MembersArrived(
        ticket=1,
        conversation_id=b"\2" * 16,
        version=GREATEST,
        since_version=0,
        added=(9, GREATEST, 1),
        removed=(),
        name="n",
        creator=GREATEST,
        full=True,
    )
    assert members_as_json(answer)["members"] == ["1", "9", str(GREATEST)]


def report(verdict: Verdict, orphans: int = 0) -> AuditReport:
    one = Orphan(
        kind=OrphanKind.RECEIPT_MISSING,
        partition=1,
        offset=GREATEST,
        shard=3,
        message_id=b"\1" * 16,
        detail="why",
    )
    return AuditReport(
        verdict=verdict,
        covered=(CoveredRange(partition=0, low=0, high=GREATEST, records=9),),
        orphans=(one,) * min(orphans, 30),
        orphans_total=orphans,
        in_flight=(b"\5" * 16,),
        incomplete=("shard 3 lags",) if verdict is Verdict.INCOMPLETE else (),
        records=9,
        dispatches=18,
    )


def test_the_audit_s_report() -> None:
    told = report_as_json(report(Verdict.ORPHANS, orphans=31))
    assert json.loads(json.dumps(told)) == told
    assert told["verdict"] == "ORPHANS"
    assert told["covered"] == [{"partition": 0, "low": "0", "high": str(GREATEST), "records": 9}]
    assert told["in_flight"] == ["05" * 16]
    lines = list(report_as_text(told))
    assert lines[0].startswith("ORPHANS: ")
    assert sum("receipt_missing" in line for line in lines) == 20
    assert any("and 11 more" in line for line in lines)
    waiting = list(report_as_text(report_as_json(report(Verdict.INCOMPLETE))))
    assert any("shard 3 lags" in line for line in waiting)
    assert next(report_as_text(report_as_json(report(Verdict.CLEAN)))).startswith("CLEAN")


def conversation(**changes: object) -> Conversation:
    plain = Conversation(
        conversation_id=b"\2" * 16,
        kind=1,
        peer_user_id=GREATEST,
        last_activity_id=b"\3" * 16,
        preview=message(),
        unread=3,
        unread_exact=True,
        read_seq=GREATEST - 3,
        newest_seq=GREATEST,
    )
    return msgspec.structs.replace(plain, **changes)


def test_a_conversation_keeps_its_numbers() -> None:
    told = json.loads(json.dumps(conversation_as_json(conversation(), ME)))
    assert told["read_seq"] == str(GREATEST - 3)
    assert told["newest_seq"] == str(GREATEST)
    assert told["peer_user_id"] == str(GREATEST)
    assert told["conversation_id"] == "02" * 16
    assert told["preview"]["text"] == "hello"
    assert (told["unread"], told["unread_exact"]) == (3, True)
    assert all(abs(number) < 2**53 for number in numbers(told))


def test_a_conversation_without_peer_or_preview() -> None:
    told = conversation_as_json(conversation(peer_user_id=0, preview=None), ME)
    assert (told["peer_user_id"], told["preview"]) == (None, None)
    assert "#" + "02" * 16 in conversation_line(conversation(peer_user_id=0, preview=None), ME)


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({}, "    3      @"),
        ({"unread": 0}, "           @"),
        ({"unread": 200, "unread_exact": False}, " 200+      @"),
        ({"unread": 0, "unread_exact": False}, "    +      @"),
        ({"pinned": True, "muted": True, "marked_unread": True, "hidden": True}, "    3 *-!h @"),
    ],
)
def test_a_conversation_in_one_line(changes: dict[str, object], begins: str) -> None:
    line = conversation_line(conversation(**changes), ME)
    assert line.startswith(begins)
    assert line.endswith("hello")


def test_a_draft_can_not_drive_the_terminal() -> None:
    assert "\x1b" not in conversation_line(conversation(draft="\x1b[2J"), ME)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (MessageKind.RECALL, "(recalled: message 41)"),
        (MessageKind.DELETE_FOR_ME, "(deleted for you: message 41)"),
    ],
)
def test_an_overlay_says_what_it_lies_on(kind: int, says: str) -> None:
    overlay = message(kind=kind, body=(41).to_bytes(8, "big"))
    assert message_line(overlay, ME).endswith(says)
    told = message_as_json(overlay, ME)
    assert (told["text"], told["target_seq"]) == (None, "41")
    assert "body_base64" not in told
