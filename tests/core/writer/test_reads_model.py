"""Every read against a model that knows only the log: pages, unread, heads, whatever was trimmed, expired or overlaid.

The model walks the effective records once, from the first to the last, and shares no code with the writer.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from qim.core.contract.entities import (
    EMPTY_ID,
    MembershipOp,
    MessageKind,
    MessageRecord,
    RetentionClass,
    decode_stored_record,
)
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.params import HOUR_MS
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.retention import RetentionPolicy
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene
from tests.core.writer.test_tiers import trim_everything

KEPT_MS, EPHEMERAL_MS = 40 * HOUR_MS, 6 * HOUR_MS
NEVER = 1 << 62
CONFIG = WriterConfig(
    outbox_partition_count=1,
    tiered=True,
    history_rows_max=2,
    history_bytes_max=700,
    summary_rows_first=1,
    apply_records_max=3,
    restore_page_max=1,
    recall_window_ms=1000 * HOUR_MS,
    retention=RetentionPolicy(default_ms=KEPT_MS, ephemeral_ms=EPHEMERAL_MS),
)
OLDER, NEWER, AROUND = HistoryDirection
USERS = (1, 2, 3)
ACTIONS = st.lists(
    st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(0, 2)), min_size=1, max_size=25
)
LIMITS = st.tuples(st.integers(1, 4), st.integers(1, 12))


class Seen(Struct):
    """What one user may see, oldest first."""

    rows: list[MessageRecord]
    recalled: set[int]
    deleted: set[int]


def seen_by(user: int, records: list[MessageRecord], wall: int) -> Seen:
    """One walk over the log of one group."""
    member, rows, recalled, deleted = False, [], set(), set()
    for record in records:
        change = record.delta.op if record.delta is not None else 0
        mine = record.delta is not None and user in record.delta.users
        if mine and change in (MembershipOp.CREATE, MembershipOp.ADD):
            member = True
        if member:
            rows.append(record)
        if mine and change in (MembershipOp.REMOVE, MembershipOp.LEAVE):
            member = False
        if record.kind == MessageKind.RECALL:
            recalled.add(record.target_seq)
        if record.kind == MessageKind.DELETE_FOR_ME and record.sender_id == user:
            deleted.add(record.target_seq)
    kept = [row for row in rows if wall < _ends(row)]
    foreign = [r for r in kept if r.kind == MessageKind.DELETE_FOR_ME and r.sender_id != user]
    return Seen([row for row in kept if row not in foreign], recalled, deleted)


def _ends(record: MessageRecord) -> int:
    if record.retention_class == RetentionClass.COMPLIANCE_HOLD:
        return NEVER
    ephemeral = record.retention_class == RetentionClass.EPHEMERAL
    return record.sent_at + (EPHEMERAL_MS if ephemeral else KEPT_MS)


def act(scene: Scene, group: bytes, action: int, first: int, second: int) -> None:
    """One action, settled."""
    user = USERS[second]
    if action <= 2:
        kind = (RetentionClass.DEFAULT, RetentionClass.EPHEMERAL, RetentionClass.COMPLIANCE_HOLD)
        for _ in range(1 + first % 4):
            scene.send(user, to=group, retention_class=kind[first % 3], body=b"x" * (9 * first))
    elif action <= 4:
        op = MembershipOp.ADD if action == 3 else MembershipOp.REMOVE
        scene.group(1, op, (USERS[1 + second % 2],), to=group)
    elif action == 5:
        scene.recall(user, group, first + 1)
    elif action == 6:
        scene.delete(user, group, first + 1)
    elif action == 7:
        scene.archive_to()
    elif action == 8:
        trim(scene)
    elif action == 9:
        scene.advance((1 + first) * HOUR_MS)
    elif action == 10:
        scene.archive_to()
        scene.restart_store(-1)
        if second:
            scene.trim_log(scene.archive.position - first % 2)
        scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    else:
        scene.restart_store(max(scene.keyspace.forgotten(), scene.keyspace.mark() - first))
        scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()


def trim(scene: Scene) -> None:
    """All that is archived."""
    scene.settle()
    trim_everything(scene, strict=False)


def expected_page(
    seen: Seen, direction: int, anchor: int, limit: int
) -> tuple[list[int], list[int], bool, bool]:
    shown = [r.conversation_seq for r in seen.rows if r.conversation_seq not in seen.deleted]
    older = [s for s in shown if s < anchor or (direction == AROUND and s == anchor)]
    newer = [s for s in shown if s > anchor]
    if direction == OLDER:
        older = older if anchor else shown
        page, more, beyond = older[-limit:], len(older) > limit, False
    elif direction == NEWER:
        page, more, beyond = newer[:limit], len(newer) > limit, False
    else:
        half = (limit + 1) // 2
        page = older[-half:] + newer[: limit - half]
        more, beyond = len(older) > half, len(newer) > limit - half
    return page, [s for s in page if s in seen.recalled], more, beyond


def compare_page(
    scene: Scene, group: bytes, records: list[MessageRecord], question: tuple[int, int, int, int]
) -> None:
    user, direction, anchor, limit = question
    seen = seen_by(user, records, scene.wall())
    rid = scene.history(user, group, anchor, direction, limit)
    scene.settle()
    if not any(r.delta is not None and user in r.delta.users for r in records):
        assert scene.refused(rid)
        return
    past = scene.past(rid)
    seqs = [decode_stored_record(row).conversation_seq for row in past.records]
    found = (seqs, list(past.recalled), past.has_more, past.has_more_newer)
    assert found == expected_page(seen, direction, anchor, limit)


def expected_summary(seen: Seen, user: int, read_seq: int, window: int) -> tuple[int, bool, int]:
    """(unread, exact, seq of the head)."""
    beyond = [row for row in seen.rows if row.conversation_seq > read_seq]
    gone = seen.recalled | seen.deleted
    talk = (MessageKind.TEXT, MessageKind.CUSTOM)
    counted = [
        row
        for row in beyond[:window]
        if row.sender_id != user and row.kind in talk and row.conversation_seq not in gone
    ]
    exact = len(beyond) <= window
    overlays = (MessageKind.RECALL, MessageKind.DELETE_FOR_ME)
    heads = [r for r in seen.rows if r.kind not in overlays and r.conversation_seq not in gone]
    return (len(counted) if exact else window, exact, heads[-1].conversation_seq if heads else 0)


def compare_summary(
    scene: Scene, group: bytes, records: list[MessageRecord], question: tuple[int, int, int, int]
) -> None:
    user, _, read_seq, window = question
    seen = seen_by(user, records, scene.wall())
    summary = scene.summary(user, group, read_seq, window)
    head = decode_stored_record(summary.head).conversation_seq if summary.head else 0
    told = (summary.unread, summary.unread_exact, head)
    assert told == expected_summary(seen, user, read_seq, window)
    newest = seen.rows[-1].last_activity_id if seen.rows else EMPTY_ID
    assert summary.last_activity_id == newest
    # what it said holds as long as it said, however much of the rest has run out by then
    if summary.valid_until == 0:
        return  # who has left: it holds for this answer alone
    assert summary.valid_until > scene.wall()
    later = seen_by(user, records, min(summary.valid_until, NEVER) - 1)
    assert told == expected_summary(later, user, read_seq, window)


@settings(max_examples=100)
@given(ACTIONS, LIMITS)
def test_reads_are_what_the_log_says(
    actions: list[tuple[int, int, int]], limits: tuple[int, int]
) -> None:
    scene = Scene(CONFIG)
    group = scene.create(1, 2)
    whole = list(scene.effective())
    for action in actions:
        act(scene, group, *action)
        known = {record.message_id for record in whole}
        whole += [record for record in scene.effective() if record.message_id not in known]
    assert not scene.violations
    last = whole[-1].conversation_seq
    for user in USERS:
        for anchor in range(last + 2):
            for limit in limits:
                for direction in HistoryDirection:
                    compare_page(scene, group, whole, (user, direction, anchor, limit))
                compare_summary(scene, group, whole, (user, 0, anchor, limit))


def test_the_model_meets_what_it_is_for() -> None:
    """A story with everything in it, so that the property can't hold for nothing."""
    scene = Scene(CONFIG)
    group = scene.create(1, 2)
    story = [(0, 3, 1), (3, 0, 1), (2, 2, 0), (5, 1, 1), (6, 2, 1), (4, 0, 1), (0, 1, 0)]
    for action in (*story, (7, 0, 0), (8, 0, 0), *story, (10, 0, 1), (9, 6, 0), (1, 0, 0)):
        act(scene, group, *action)
    assert scene.archive.reads
    assert scene.counts["conversations_restored"] == 1
    kinds = {record.kind for record in scene.archive.kept[group]}
    assert kinds >= {MessageKind.TEXT, MessageKind.CONTROL, MessageKind.RECALL}
    assert MessageKind.DELETE_FOR_ME in kinds
    assert not scene.violations
