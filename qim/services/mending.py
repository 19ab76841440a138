"""The operator's procedures of qim/core/mending/ over real ports, and their reports as JSON."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from qim.core.audit import AuditReport, Orphan
from qim.core.contract.params import Parameters
from qim.core.mending.asking import NothingYet, NotMended, Procedure, Unanswered
from qim.core.mending.bump import Bump, BumpPlan
from qim.core.mending.carrying import Carrying
from qim.core.mending.dead_letters import DeadLetter, Redispatch, listed, redriven
from qim.core.mending.dispatches import MENDABLE, redispatched
from qim.core.mending.halts import Halt, halts
from qim.core.mending.outbox import OutboxPlan, OutboxRepair
from qim.core.mending.user_state import UserStatePlan, UserStateRepair
from qim.core.ports.archive import ArchiveRequest
from qim.core.ports.completion import Failed, FailReason, StoreRole, Unknown
from qim.core.ports.local import Started
from qim.core.ports.log import LogRequest
from qim.core.ports.registry import RegistryRequest
from qim.core.ports.store import StoreRequest, store_role
from qim.services.hosting import Ports
from qim.services.runtime import monotonic_ms

T = TypeVar("T")
ANSWER_SECONDS_MAX: Final = 60.0
ATTEMPTS_MAX: Final = 20
RETRY_SECONDS: Final = 0.25
_PASSING: Final = (FailReason.UNREACHABLE, FailReason.OVERLOADED)
ADDRESS: Final = "operator"
_NUMBERS: Final = frozenset(
    {
        "partition",
        "shard",
        "shard_epoch",
        "new_shard_epoch",
        "size_bytes",
        "recipients",
        "shards",
        "lost_dispatched",
        "lost_undispatched",
        "padding",
        "unarchived",
        "republished",
        "redispatched",
        "voided_claims",
    }
)
"""Fields that stay numbers in JSON; every other is an offset and may be wider than a double."""


class Mender:
    """Carries procedures out, one request at a time. ``tiered``: there is an archiver to be put, too."""

    def __init__(self, ports: Ports, parameters: Parameters, *, tiered: bool) -> None:
        self._ports = ports
        self._parameters = parameters
        self._tiered = tiered
        self._owner = f"operator-{secrets.token_hex(4)}"

    async def carry_out(self, procedure: Procedure[T]) -> T:
        """Its report, and its leases renewed until it has come to its end. Raises NotMended."""
        machine = Carrying(procedure)
        events: list[Any] = [Started(address=ADDRESS, wall=0)]
        asked: list[asyncio.Task[Any]] = []
        try:
            while True:
                for request in machine.step(monotonic_ms(), events):
                    asked.append(asyncio.ensure_future(self._completed(request)))
                if machine.idle():
                    report: T = machine.result()
                    return report
                due = machine.deadline()
                wait = None if due is None else max(0, due - monotonic_ms()) / 1000
                done, _ = await asyncio.wait(
                    asked, timeout=wait, return_when=asyncio.FIRST_COMPLETED
                )
                events = [one.result() for one in asked if one in done]
                asked = [one for one in asked if one not in done]
        finally:
            for one in asked:
                one.cancel()

    async def dead_letters(self, partitions: Sequence[int] = ()) -> tuple[DeadLetter, ...]:
        """All of these outbox partitions, or of all."""
        return await self.carry_out(listed(partitions or self.partitions()))

    async def halts(self) -> tuple[Halt, ...]:
        """Consumers that stand before a record of a newer format."""
        return await self.carry_out(halts(self.partitions(), self.shards(), tiered=self._tiered))

    async def redrive(
        self, letters: Iterable[DeadLetter], *, apply: bool
    ) -> tuple[Redispatch, ...]:
        """Dispatch what can be read."""
        return await self.carry_out(
            redriven(tuple(letters), self._parameters.shard_count, self._key(), apply=apply)
        )

    async def redispatch(self, orphans: Iterable[Orphan], *, apply: bool) -> tuple[Redispatch, ...]:
        """Dispatch again what the audit misses in the dispatch log."""
        return await self.carry_out(
            redispatched(tuple(orphans), self._parameters.shard_count, self._key(), apply=apply)
        )

    async def bump(self, shard: int, *, apply: bool, force: bool = False) -> BumpPlan:
        """A mailbox shard begun anew."""
        run = Bump(
            shard,
            self._parameters.outbox_partition_count,
            shard_count=self._parameters.shard_count,
            owner=self._owner,
            address=ADDRESS,
            fresh_key=self._key(),
            force=force,
        )
        return await self.carry_out(run.applied() if apply else run.planned())

    async def repair_outbox(self, partition: int, *, apply: bool) -> OutboxPlan:
        """An outbox partition filled up again."""
        run = OutboxRepair(
            partition,
            self._parameters.shard_count,
            owner=self._owner,
            address=ADDRESS,
            fresh_key=self._key(),
            tiered=self._tiered,
        )
        return await self.carry_out(run.applied() if apply else run.planned())

    async def repair_states(self, shard: int, *, apply: bool) -> UserStatePlan:
        """A user-state partition filled up again."""
        run = UserStateRepair(shard, owner=self._owner, address=ADDRESS, fresh_key=self._key())
        return await self.carry_out(run.applied() if apply else run.planned())

    def partitions(self, only: int | None = None) -> tuple[int, ...]:
        """All outbox partitions, or this one. Raises NoSuch."""
        return _chosen("outbox partition", self._parameters.outbox_partition_count, only)

    def shards(self, only: int | None = None) -> tuple[int, ...]:
        """All mailbox shards, or this one. Raises NoSuch."""
        return _chosen("mailbox shard", self._parameters.shard_count, only)

    def _key(self) -> bytes:
        return secrets.token_bytes(16)

    async def _completed(self, request: Any) -> Any:
        return replace(await self._answer(request), op=request.op)

    async def _answer(self, request: Any) -> Any:
        """What passes by itself is tried again; an outcome that isn't known is the procedure's to judge."""
        for attempt in range(ATTEMPTS_MAX):
            reply = await self._once(request)
            if not (isinstance(reply, Failed) and reply.why in _PASSING):
                break
            if attempt < ATTEMPTS_MAX - 1:
                await asyncio.sleep(RETRY_SECONDS)
        return reply

    async def _once(self, request: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(reply: Any) -> None:
            if not future.done():
                future.set_result(reply)

        self._port(request)(request, answered)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await future
        except TimeoutError:
            return Unknown(op=0)

    def _port(self, request: Any) -> Callable[[Any, Callable[[Any], None]], None]:
        ports = self._ports
        if isinstance(request, LogRequest):
            return ports.log.submit
        if isinstance(request, RegistryRequest):
            return ports.registry.submit
        if isinstance(request, ArchiveRequest):
            assert ports.archive is not None
            return ports.archive.submit
        assert isinstance(request, StoreRequest), request
        message = store_role(request) is StoreRole.MESSAGE
        return (ports.message if message else ports.mailbox).submit


class NoSuch(NotMended):
    """A partition or shard this deployment doesn't have."""


class MendOrder(Struct, frozen=True, kw_only=True):
    """What is asked for. ``partition`` or ``shard`` None: all of them; ``offset`` None: every dead letter there."""

    what: Literal["deadletters", "redrive", "dispatches", "outbox", "states", "bump"]
    apply: bool = False
    partition: int | None = None
    offset: int | None = None
    shard: int | None = None
    force: bool = False


async def mended(
    order: MendOrder, mender: Mender, audit: Callable[[], Awaitable[AuditReport]]
) -> dict[str, Any]:
    """{"what", "apply", "found": […]}; "refused": what can't be done as things stand; "misasked": nor ever can.

    An entry of ``found`` is a partition, shard or record. Nothing that was done before a refusal goes untold.
    """
    told: dict[str, Any] = {"what": order.what, "apply": order.apply}
    try:
        told["found"] = await _mended(order, mender, audit)
    except NoSuch as refused:
        return told | {"found": [], "refused": str(refused), "misasked": True}
    except NotMended as refused:
        return told | {"found": [], "refused": str(refused)}
    if refusal := _refusal(told["found"]):
        told["refused"] = refusal
    return told


async def _mended(
    order: MendOrder, mender: Mender, audit: Callable[[], Awaitable[AuditReport]]
) -> list[dict[str, Any]]:
    partitions = mender.partitions(order.partition)
    apply = order.apply
    match order.what:
        case "deadletters":
            return [as_json(one) for one in await mender.dead_letters(partitions)]
        case "redrive":
            letters = await mender.dead_letters(partitions)
            wanted = [one for one in letters if order.offset in (None, one.offset)]
            return await _each(
                [_place(one.partition, one.offset, one.message_id) for one in wanted],
                lambda at: mender.redrive(wanted[at : at + 1], apply=apply),
            )
        case "dispatches":
            orphans = _records((await audit()).orphans, partitions)
            return await _each(
                [_place(one.partition, one.offset, one.message_id.hex()) for one in orphans],
                lambda at: mender.redispatch(orphans[at : at + 1], apply=apply),
            )
        case "outbox":
            return await _each(
                [{"partition": one} for one in partitions],
                lambda at: _alone(mender.repair_outbox(partitions[at], apply=apply)),
            )
        case "states" | "bump":
            shards = mender.shards(order.shard)
            run = mender.repair_states if order.what == "states" else _bumped(order, mender)
            return await _each(
                [{"shard": one} for one in shards],
                lambda at: _alone(run(shards[at], apply=apply)),
            )


def _bumped(order: MendOrder, mender: Mender) -> Callable[..., Awaitable[BumpPlan]]:
    """Of all shards, those that need it; one that is named is refused where it doesn't."""

    async def run(shard: int, *, apply: bool) -> BumpPlan:
        if order.shard is None and not order.force:
            plan = await mender.bump(shard, apply=False)
            if plan.whole or not apply:
                return plan
        return await mender.bump(shard, apply=apply, force=order.force)

    return run


# ------------------------------------------------------------ one after the other


async def _each(
    places: Sequence[dict[str, Any]], run: Callable[[int], Awaitable[Sequence[Struct]]]
) -> list[dict[str, Any]]:
    """What became of each, in order: a refusal concerns its own place alone, a server that is away all that come after."""
    found: list[dict[str, Any]] = []
    for at, place in enumerate(places):
        try:
            found += [as_json(one) | _result(one) for one in await run(at)]
        except NothingYet as told:
            # Of all there are: nobody asked for this one, and nothing is to be done there.
            result = "nothing_yet" if len(places) > 1 else "refused"
            found.append(place | {"result": result, "why": str(told)})
        except Unanswered as away:
            found.append(place | {"result": "refused", "why": str(away)})
            found += [later | {"result": "not_tried"} for later in places[at + 1 :]]
            break
        except NotMended as refused:
            found.append(place | {"result": "refused", "why": str(refused)})
    return found


async def _alone(report: Awaitable[Struct]) -> Sequence[Struct]:
    return [await report]


def _result(report: Struct) -> dict[str, str]:
    """Of a partition or shard; a record tells its outcome itself."""
    if isinstance(report, OutboxPlan):
        done, whole = report.applied_repair, report.nothing()
    elif isinstance(report, BumpPlan | UserStatePlan):
        done, whole = report.applied, report.whole
    else:
        return {}
    return {"result": "done" if done else "whole" if whole else "to_do"}


def _place(partition: int, offset: int, message_id: str) -> dict[str, Any]:
    return {"partition": partition, "offset": str(offset), "message_id": message_id}


def _records(orphans: Sequence[Orphan], partitions: Sequence[int]) -> list[Orphan]:
    """Those that another dispatch mends, each record once, however many shards miss it."""
    found: dict[tuple[int, int], Orphan] = {}
    for one in orphans:
        if one.partition in partitions and one.kind in MENDABLE:
            found.setdefault((one.partition, one.offset), one)
    return list(found.values())


def _refusal(found: Sequence[dict[str, Any]]) -> str:
    """Of all entries in one line, "" where none was refused."""
    refused = [one["why"] for one in found if one.get("result") == "refused"]
    if not refused or len(found) == 1:
        return "".join(refused)
    later = sum(one.get("result") == "not_tried" for one in found)
    return f"{len(refused)} of {len(found)} refused, {later} not tried; the first: {refused[0]}"


def as_json(report: Struct | Sequence[Struct]) -> Any:
    """Structs as objects; offsets are strings, being wider than JavaScript counts."""
    if isinstance(report, Struct):
        return {name: _field(name, getattr(report, name)) for name in report.__struct_fields__}
    return [as_json(one) for one in report]


def _field(name: str, value: Any) -> Any:
    if isinstance(value, bool) or name in _NUMBERS:
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return [_field(name, one) for one in value]
    return value


def _chosen(what: str, count: int, only: int | None) -> tuple[int, ...]:
    if only is None:
        return tuple(range(count))
    if not 0 <= only < count:
        raise NoSuch(f"there is no {what} {only}: they are 0 to {count - 1}")
    return (only,)
