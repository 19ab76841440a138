"""Any sequence of requests of two owners: epochs only rise, and nobody is denied or granted wrongly (every registry)."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qim.core.ports.registry import Denied, Granted
from tests.adapters.registry.conftest import REGISTRIES, Registries
from tests.adapters.registry.registries import SHARD, TTL_MS, Asker

# Passing times never add up to about a TTL: the simulator's latencies must not decide what is expected.
OWNERS = st.sampled_from(("a", "b"))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), OWNERS),
        st.tuples(st.just("renew"), OWNERS),
        st.tuples(st.just("release"), OWNERS),
        st.tuples(st.just("raise"), st.integers(0, 12)),
        st.tuples(st.just("pass"), st.sampled_from((8_400, 36_000, TTL_MS + 50))),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=30,
)


class Model:
    """What is known of one resource: the greatest epoch told, each owner's last grant, and who must hold it."""

    def __init__(self) -> None:
        self.told = 0
        self.epochs = {"a": 0, "b": 0}
        self.holder = ""
        self.unsure = False
        """The holder gave back under an epoch that was raised since: whether that counts is no rule."""
        self.since_ms = 0
        """Upper bound of the time since the holder's last grant or renewal."""


def run(asker: Asker, model: Model, operation: tuple[str, object]) -> None:
    match operation:
        case ("acquire", str() as owner):
            reply = asker.acquire(owner)
            if isinstance(reply, Denied):
                assert model.holder not in ("", owner), "denied although free"
                assert reply.owner == model.holder
                return
            assert isinstance(reply, Granted)
            assert reply.epoch > model.told
            assert model.unsure or model.holder in ("", owner), "granted although held"
            model.unsure = False
            model.told = model.epochs[owner] = reply.epoch
            model.holder, model.since_ms = owner, 0
        case ("renew", str() as owner):
            lost = asker.lost(owner, (SHARD, model.epochs[owner]))
            kept = model.holder == owner and model.epochs[owner] == model.told
            assert lost == (() if kept else (SHARD,))
            if kept:
                model.since_ms = 0
        case ("release", str() as owner):
            asker.release(owner, (SHARD, model.epochs[owner]))
            if model.holder == owner and model.epochs[owner] == model.told:
                model.holder = ""
            elif model.holder == owner:
                model.unsure = True
        case ("raise", int() as step):
            asker.raise_epoch(step)
            model.told = max(model.told, step)
        case ("pass", int() as ms):
            asker.registry.let_pass(ms)
            model.since_ms += ms
            if model.since_ms > TTL_MS:
                model.holder = ""
        case _:
            asker.registry.reopen()
            asker.registry.let_pass(TTL_MS + 50)
            model.holder = ""
    assert asker.read().epoch == model.told


@pytest.mark.parametrize("name", REGISTRIES)
@settings(max_examples=60)
@given(operations=OPERATIONS)
@example(operations=[("acquire", "a"), ("raise", 9), ("release", "a"), ("acquire", "b")])
def test_epochs_only_rise_and_one_holds(
    registries: Registries, name: str, operations: list[tuple[str, object]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        registry = registries.opened(name, Path(folder))
        try:
            asker, model = Asker(registry), Model()
            for operation in operations:
                run(asker, model, operation)
        finally:
            registry.close()
