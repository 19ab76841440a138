"""What holds for every request: incarnation, fence, empty and unmarked keyspaces, refusals that write nothing."""

from typing import Any

import pytest

from qim.adapters.redis import codec
from qim.adapters.redis.layout import INCARNATION_KEY
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset
from qim.core.ports.store import store_role
from tests.adapters.store.requests import MARKER
from tests.adapters.store.samples import BOUND, FENCED, KINDS, OPENS, sample
from tests.adapters.store.servers import RUN_ID, Store, ask


def opened(store: Store, epoch: int = 7) -> None:
    for kind in OPENS:
        reply = ask(store, sample(kind, epoch=epoch))
        assert reply.incarnation == RUN_ID + b"/" + MARKER


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_empty_keyspace_is_reset_to_all_but_open(store: Store, kind: Any) -> None:
    reply = ask(store, sample(kind))
    if kind in OPENS:
        assert reply.incarnation == RUN_ID + b"/" + MARKER
        return
    assert reply == StoreReset(op=77, store=store_role(sample(kind)))
    assert store.dump() == {}


@pytest.mark.parametrize("kind", OPENS, ids=lambda kind: kind.__name__)
def test_data_without_a_marker_refuses(store: Store, kind: Any) -> None:
    opened(store)
    # asked under another marker key, all that stands here is data without a marker
    call = codec.encode(sample(kind))
    call.keys[0] = b"qim:another"
    before = store.dump()
    assert codec.decode(sample(kind), RUN_ID, store.raw(*call)) == Failed(
        op=77, why=FailReason.KEYSPACE_UNMARKED
    )
    assert store.dump() == before


@pytest.mark.parametrize("kind", BOUND, ids=lambda kind: kind.__name__)
def test_another_marker_is_a_reset(store: Store, kind: Any) -> None:
    opened(store)
    before = store.dump()
    for other in (b"", b"run/", b"run/other", b"run/" + MARKER[:-1], b"run/" + MARKER + b"\0"):
        reply = ask(store, sample(kind, incarnation=other))
        assert reply == StoreReset(op=77, store=store_role(sample(kind))), other
        assert store.dump() == before


@pytest.mark.parametrize("kind", FENCED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("epoch", [0, 6, 255, 256, (1 << 53) - 1, (1 << 64) - 1])
def test_a_lower_epoch_is_fenced(store: Store, kind: Any, epoch: int) -> None:
    opened(store, epoch)
    before = store.dump()
    if epoch > 0:
        assert ask(store, sample(kind, epoch=epoch - 1)) == Fenced(op=77, epoch=epoch)
        assert store.dump() == before
    if kind not in OPENS and epoch < (1 << 64) - 1:
        reply = ask(store, sample(kind, epoch=epoch + 1))
        assert isinstance(reply, StoreReset), "an epoch that was never opened here"
        assert store.dump() == before
    assert not isinstance(ask(store, sample(kind, epoch=epoch)), Fenced | StoreReset | Failed)


@pytest.mark.parametrize("kind", OPENS, ids=lambda kind: kind.__name__)
def test_of_two_owners_of_one_epoch_the_second_is_fenced(store: Store, kind: Any) -> None:
    """A registry put back from an older copy grants an epoch twice."""
    first, second = b"a" * 16, b"b" * 16
    opened(store, epoch=1)
    granted = ask(store, sample(kind, epoch=7, opener=first))
    before = store.dump()
    assert ask(store, sample(kind, epoch=7, opener=second)) == Fenced(op=77, epoch=7)
    assert store.dump() == before
    assert ask(store, sample(kind, epoch=7, opener=first)) == granted, "its own retry"
    assert ask(store, sample(kind, epoch=7)) == granted, "an operator looks, and owns nothing"
    assert store.dump() == before
    assert ask(store, sample(kind, epoch=8, opener=second)) == granted
    for epoch in (7, 8):
        assert ask(store, sample(kind, epoch=epoch, opener=first)) == Fenced(op=77, epoch=8)


@pytest.mark.parametrize("kind", OPENS, ids=lambda kind: kind.__name__)
def test_an_epoch_raised_by_nobody_in_particular_is_no_owners(store: Store, kind: Any) -> None:
    opened(store)
    assert ask(store, sample(kind, opener=b"a" * 16)) == Fenced(op=77, epoch=7)
    assert not isinstance(ask(store, sample(kind, epoch=8, opener=b"a" * 16)), Fenced)


def test_opening_again_keeps_the_marker(store: Store) -> None:
    opened(store)
    for kind in OPENS:
        reply = ask(store, sample(kind, epoch=9, fresh_key=b"another"))
        assert reply.incarnation == RUN_ID + b"/" + MARKER
        assert ask(store, sample(kind, epoch=9)) == ask(store, sample(kind, epoch=9))
    assert store.dump()[INCARNATION_KEY] == ("string", MARKER)


def test_run_id_is_the_server_half() -> None:
    for kind in BOUND:
        assert codec.run_id_named(sample(kind)) == b"run"
    for kind in set(KINDS) - set(BOUND):
        assert codec.run_id_named(sample(kind)) == b""
    assert codec.run_id_named(sample(BOUND[0], incarnation=b"run/key/with/slashes")) == b"run"


def test_replies_no_script_gives_are_told() -> None:
    for raw in (None, [], b"K", 1, [b"Q"], [b"L", 0], [b"T", b""], [b"N"]):
        with pytest.raises(codec.MalformedReply):
            codec.decode(sample(OPENS[0]), RUN_ID, raw)


def test_too_many_arguments_are_refused_before_sending() -> None:
    kind = next(kind for kind in KINDS if kind.__name__ == "LookupCommits")
    assert not codec.too_large(codec.encode(sample(kind, dedupe_keys=(b"k" * 16,) * 6_995)))
    assert codec.too_large(codec.encode(sample(kind, dedupe_keys=(b"k" * 16,) * 6_996)))
