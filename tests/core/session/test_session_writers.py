"""What a projection asks of writers: they are silent, gone or elsewhere, or what they answer doesn't fit."""

from typing import Any

from msgspec.structs import replace

from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import Refused
from qim.core.contract.rpc_session import AskReadBy, AskSessionList, SubmitRead, SummariesAnswer
from qim.core.ports.network import Received, Send
from qim.core.ports.registry import LeaseRead, ReadLease
from tests.core.session.scene import EVERYONE, Scene, refused, shown
from tests.core.session.toy_writer import conversation


def test_a_writer_that_is_silent_gone_or_elsewhere() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()

    def silent(effect: Any) -> str | None:
        asked = isinstance(effect, Send) and effect.address.startswith("writer-")
        return "swallowed" if asked else None

    scene.fault = silent
    refused(scene.page(1), ErrorCode.UNAVAILABLE)
    refused(scene.read(1, name, 1), ErrorCode.UNAVAILABLE)
    answer = scene.answer(AskReadBy, 1, conversation_id=name, conversation_seq=1)
    refused(answer, ErrorCode.UNAVAILABLE)
    scene.fault = lambda effect: "failed" if isinstance(effect, ReadLease) else None
    refused(scene.page(1), ErrorCode.UNAVAILABLE)
    scene.fault = lambda effect: None
    assert shown(scene.pages(1)) == scene.expected(1, {})


def answered(scene: Scene, rid: int, message: Any) -> None:
    scene.feed(Received(source="writer-0", wall=scene.wall(), message=replace(message, rid=rid)))


def asked_of(scene: Scene) -> list[Any]:
    """Catch what is asked of writers instead of answering it."""
    caught: list[Any] = []

    def catch(effect: Any) -> str | None:
        if isinstance(effect, Send) and not effect.address.startswith("gateway"):
            caught.append(effect)
            return "swallowed"
        return None

    scene.fault = catch
    return caught


def test_another_owner_is_asked_where_the_first_one_says_so() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    caught = asked_of(scene)
    rid = scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0)
    scene.run()
    moved = Refused(rid=0, code=ErrorCode.NOT_OWNER, message="", owner_address="elsewhere")
    answered(scene, caught[0].message.rid, moved)
    scene.run()
    assert caught[1].address == "elsewhere"
    assert caught[1].message.rid != caught[0].message.rid
    answered(scene, caught[1].message.rid, replace(moved, owner_address=""))
    scene.run()
    assert caught[2].address.startswith("writer-"), "looked up again"
    answered(scene, caught[2].message.rid, moved)
    scene.run()
    refused(scene.answers[rid], ErrorCode.UNAVAILABLE)
    late = scene.counts.get("session_answer_late", 0)
    answered(scene, caught[2].message.rid, moved)
    scene.run()
    assert scene.counts["session_answer_late"] == late + 1


def test_an_answer_to_the_last_life_answers_nothing_of_this_one() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    caught = asked_of(scene)
    scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0)
    scene.run()
    scene.now += 1
    scene.start()
    scene.run(100)
    rid = scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0)
    scene.run()
    before, after = (one.message.rid for one in caught)
    assert before != after
    summary = scene.writer.summary(name, 1, 0, 1)
    answered(scene, before, SummariesAnswer(rid=0, summaries=(summary,)))
    scene.run()
    assert rid not in scene.answers
    assert scene.counts["session_answer_late"] == 1
    answered(scene, after, SummariesAnswer(rid=0, summaries=(summary,)))
    scene.run()
    assert scene.answers[rid].rows[0].conversation_id == name


def test_an_answer_that_doesnt_fit_is_no_answer() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    caught = asked_of(scene)
    other = scene.writer.summary(conversation(2), 1, 0, 1)
    questions: tuple[tuple[Any, dict[str, Any]], ...] = (
        (AskSessionList, {"revision": 0, "after": b"", "limit": 0}),
        (SubmitRead, {"conversation_id": name, "read_seq": 1}),
        (AskReadBy, {"conversation_id": name, "conversation_seq": 1}),
    )
    for kind, fields in questions:
        rid = scene.ask(kind, 1, **fields)
        scene.run()
        answered(scene, caught[-1].message.rid, SummariesAnswer(rid=0, summaries=(other,)))
        scene.run()
        refused(scene.answers[rid], ErrorCode.UNAVAILABLE)


def test_nobody_owns_the_writer_shard() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    lookups: list[Any] = []

    def catch(effect: Any) -> str | None:
        if isinstance(effect, ReadLease):
            lookups.append(effect)
            return "swallowed"
        return None

    scene.fault = catch
    rids = [scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0) for _ in range(2)]
    scene.run()
    assert len(lookups) == 1, "one lookup for both"
    nobody = LeaseRead(
        op=lookups[0].op,
        resource=lookups[0].resource,
        epoch=1,
        owner="",
        address="",
        barrier_epoch=0,
        barrier_offset=-1,
    )
    scene.feed(nobody)
    scene.run()
    for rid in rids:
        refused(scene.answers[rid], ErrorCode.UNAVAILABLE)
