"""What the users of a seed set out to do: sends, groups, comings and goings, questions, what they do to their own view.

Each seed has its own kinds and sizes of them, so that no kind hides another; each draw is keyed by what it decides.
"""

from typing import Final

from qim.core.contract.entities import MembershipOp, MessageKind, RetentionClass
from qim.sim.draw import Draw
from qim.sim.faults import Fault, OutboxTrimmed, StoreRestart
from qim.sim.plan import (
    QUERY_HISTORY,
    QUERY_MEMBERS,
    ChangeGroup,
    Connect,
    DevicePlan,
    Disconnect,
    MarkRead,
    Operation,
    Overlay,
    Query,
    Send,
    SetState,
)

TOLD_FIRST: Final = 1_000_000
"""Operations are numbered apart by what asks for them; those after faults take a hundred a fault."""
FIRST_SEND_MS: Final = 400
CROWDED_PERCENT: Final = 12
CROWD: Final = (499, 640)
CHANGES: Final = (MembershipOp.ADD, MembershipOp.ADD, MembershipOp.REMOVE, MembershipOp.LEAVE)


class Kinds:
    """Which kinds of workload this seed has."""

    def __init__(self, draw: Draw) -> None:
        calm, crowd = draw.profile == "calm", draw.profile == "crowd"
        self.groups = crowd or draw.chance(60, "groups")
        self.big_bodies = draw.chance(20, "bodies")
        self.reconnects = not calm and draw.chance(50, "reconnects")
        self.queries = crowd or draw.chance(30, "queries")
        self.selfchat = draw.chance(20, "selfchat")
        self.changes = self.groups and (crowd or draw.chance(60, "changes"))
        self.views = draw.chance(60, "views")
        self.ephemeral = draw.chance(40, "ephemeral")


def crowd(draw: Draw) -> tuple[int, ...]:
    """Members without a device, more than one broadcast may name; seldom, and none in other profiles."""
    if draw.profile != "crowd" or not draw.chance(CROWDED_PERCENT, "crowd"):
        return ()
    return tuple(range(1, 1 + draw.number(*CROWD, "crowd_of")))


def operations(
    draw: Draw, devices: tuple[DevicePlan, ...], span_ms: int, count: int
) -> tuple[Operation, ...]:
    kinds = Kinds(draw)
    users = tuple(dict.fromkeys(device.user_id for device in devices))
    made: list[Operation] = []
    groups = _groups(draw, kinds, devices, users, made, span_ms)
    number = 1_000
    for index in range(count):
        number += 1
        device = draw.number(0, len(devices) - 1, "sender", index)
        me = devices[device].user_id
        others = [user for user in users if user != me or kinds.selfchat]
        grouped = bool(groups) and draw.chance(50, "to_group", index)
        size = draw.pick((8, 16, 200, 3_000), "size", index) if kinds.big_bodies else 16
        at = FIRST_SEND_MS + draw.number(0, span_ms, "at", index)
        made.append(
            Send(
                at_ms=at,
                device=device,
                number=number,
                peer=0 if grouped else draw.pick(others, "peer", index),
                group=draw.pick(groups, "group", index) if grouped else -1,
                body_bytes=size,
                retention_class=_class(draw, kinds, index),
            )
        )
    _comings_and_goings(draw, kinds, devices, made, span_ms)
    if kinds.queries:
        _queries(draw, devices, users, groups, made, span_ms)
    if kinds.views:
        _own_views(draw, devices, users, groups, made, span_ms)
    return tuple(made)


def afterwards(
    draw: Draw, devices: tuple[DevicePlan, ...], faults: tuple[Fault, ...]
) -> tuple[Operation, ...]:
    """What came back from the archive is written to again."""
    users = tuple(dict.fromkeys(device.user_id for device in devices))
    return tuple(
        Send(
            at_ms=fault.at_ms + draw.number(500, 4_000, "again_at", index, device),
            device=device,
            number=20_000 + index * 100 + device,
            peer=draw.pick(users, "again", index, device),
        )
        for index, fault in enumerate(faults)
        if isinstance(fault, OutboxTrimmed)
        for device in range(len(devices))
    )


def before_losses(
    draw: Draw, devices: tuple[DevicePlan, ...], faults: tuple[Fault, ...]
) -> tuple[Operation, ...]:
    """Something is said and recalled just before a store loses its tail, and a device that was away comes in between."""
    made: list[Operation] = []
    losses = [fault for fault in faults if isinstance(fault, StoreRestart) and fault.lost_calls]
    for index, fault in enumerate(losses):
        begin = fault.at_ms - draw.number(120, 900, "told_before", index)
        others = [at for at, other in enumerate(devices) if other.user_id != devices[0].user_id]
        if begin < FIRST_SEND_MS or not others or not draw.chance(60, "told", index):
            continue
        reader = draw.pick(others, "away", index)
        peer, number = devices[reader].user_id, TOLD_FIRST + 10 * index
        recall_at = fault.at_ms - draw.number(10, 100, "recalled_before", index)
        back = fault.at_ms + fault.down_ms + draw.number(-80, 40, "back_after", index)
        made += [
            Disconnect(at_ms=begin - 50, device=reader),
            Send(at_ms=begin, device=0, number=number, peer=peer),
            Overlay(
                at_ms=recall_at, device=0, number=number + 1, kind=MessageKind.RECALL, peer=peer
            ),
            Connect(at_ms=max(recall_at, back), device=reader),
        ]
    return tuple(made)


def _class(draw: Draw, kinds: Kinds, index: int) -> int:
    if not kinds.ephemeral or draw.chance(50, "kept", index):
        return RetentionClass.DEFAULT
    classes = (RetentionClass.EPHEMERAL, RetentionClass.EPHEMERAL, RetentionClass.COMPLIANCE_HOLD)
    return draw.pick(classes, "class", index)


def _groups(
    draw: Draw,
    kinds: Kinds,
    devices: tuple[DevicePlan, ...],
    users: tuple[int, ...],
    made: list[Operation],
    span_ms: int,
) -> tuple[int, ...]:
    if not kinds.groups:
        return ()
    count = draw.number(1, 2, "group_count")
    for group in range(count):
        creator = draw.number(0, len(devices) - 1, "creator", group)
        members = tuple(user for user in users if draw.chance(60, "member", group, str(user))) or (
            users[0],
        )
        members += crowd(draw) if group == 0 else ()
        at = FIRST_SEND_MS - 100 + group
        made.append(
            ChangeGroup(
                at_ms=at,
                device=creator,
                number=group,
                group=group,
                operation=MembershipOp.CREATE,
                users=members,
            )
        )
        if not kinds.changes:
            continue
        for index in range(draw.number(1, 6, "changes", group)):
            operation = draw.pick(CHANGES, "operation", group, index)
            leaves = operation is MembershipOp.LEAVE
            device = draw.number(0, len(devices) - 1, "leaver", group, index) if leaves else creator
            chosen = draw.pick(users, "changed", group, index)
            made.append(
                ChangeGroup(
                    at_ms=FIRST_SEND_MS + draw.number(200, span_ms, "change_at", group, index),
                    device=device,
                    number=100 + group * 20 + index,
                    group=group,
                    operation=operation,
                    users=() if leaves else (chosen,),
                )
            )
    return tuple(range(count))


def _comings_and_goings(
    draw: Draw,
    kinds: Kinds,
    devices: tuple[DevicePlan, ...],
    made: list[Operation],
    span_ms: int,
) -> None:
    if not kinds.reconnects:
        return
    for index in range(len(devices)):
        if draw.chance(50, "leaves", index):
            leave = FIRST_SEND_MS + draw.number(0, span_ms, "leave_at", index)
            back = leave + draw.number(10, span_ms, "back_at", index)
            made.append(Disconnect(at_ms=leave, device=index))
            made.append(Connect(at_ms=back, device=index))


def _queries(
    draw: Draw,
    devices: tuple[DevicePlan, ...],
    users: tuple[int, ...],
    groups: tuple[int, ...],
    made: list[Operation],
    span_ms: int,
) -> None:
    for index in range(draw.number(1, 4, "query_count")):
        grouped = bool(groups) and draw.chance(60, "query_group", index)
        made.append(
            Query(
                at_ms=FIRST_SEND_MS + draw.number(100, span_ms, "query_at", index),
                device=draw.number(0, len(devices) - 1, "asker", index),
                kind=draw.number(QUERY_HISTORY, QUERY_MEMBERS, "query_kind", index)
                if grouped
                else QUERY_HISTORY,
                peer=0 if grouped else draw.pick(users, "query_peer", index),
                group=draw.pick(groups, "query_of", index) if grouped else -1,
            )
        )


def _own_views(
    draw: Draw,
    devices: tuple[DevicePlan, ...],
    users: tuple[int, ...],
    groups: tuple[int, ...],
    made: list[Operation],
    span_ms: int,
) -> None:
    """Read marks, states, recalls and deletions."""
    for index in range(draw.number(1, 12, "view_count")):
        grouped = bool(groups) and draw.chance(50, "view_group", index)
        at = FIRST_SEND_MS + draw.number(300, span_ms + 500, "view_at", index)
        device = draw.number(0, len(devices) - 1, "viewer", index)
        peer = 0 if grouped else draw.pick(users, "view_peer", index)
        group = draw.pick(groups, "view_of", index) if grouped else -1
        number = 10_000 + index
        where = {"at_ms": at, "device": device, "number": number, "peer": peer, "group": group}
        kind = draw.pick(("read", "read", "state", "recall", "delete"), "view", index)
        siblings = [
            other
            for other, planned in enumerate(devices)
            if other != device and planned.user_id == devices[device].user_id
        ]
        # The user's other device says something else in the same moment: whose word stands is a rule, not arrival.
        both = [{**where, "device": other, "number": number + 1_000} for other in siblings]
        if kind == "read":
            made.append(MarkRead(**where, behind=draw.number(0, 3, "behind", index)))
            made.extend(MarkRead(**one, behind=1 + index % 3) for one in both)
        elif kind == "state":
            made.append(SetState(**where, flags=draw.number(0, 7, "flags", index)))
            made.extend(SetState(**one, flags=1 + index % 7) for one in both)
        else:
            overlay = MessageKind.RECALL if kind == "recall" else MessageKind.DELETE_FOR_ME
            made.append(Overlay(**where, kind=overlay))
