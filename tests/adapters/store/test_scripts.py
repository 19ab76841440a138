"""The scripts as files: one a request, routines in front, the same bytes in a source tree and in a wheel."""

import hashlib
import re
from pathlib import Path

import pytest

from qim.adapters.redis import codec, scripts
from tests.adapters.store.conftest import SERVERS
from tests.adapters.store.samples import KINDS, sample
from tests.adapters.store.servers import ServerStore, Store

SELF_TEST = "comparison_self_test"


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_one_script_a_request() -> None:
    named = {kind.__name__: codec.encode(sample(kind)).script for kind in KINDS}
    assert named == {kind.__name__: snake_case(kind.__name__) for kind in KINDS}
    assert set(scripts.load_scripts()) == {*named.values(), SELF_TEST}


def test_every_shared_routine_is_used() -> None:
    folder = scripts.scripts_folder()
    text = "".join(file.read_text() for file in folder.rglob("*.lua"))
    used = {name.strip() for line in re.findall(r"-- Uses: (.+)", text) for name in line.split(",")}
    assert used == {file.stem for file in (folder / "lib").glob("*.lua")}


def test_hashes_are_those_a_server_makes(store: Store) -> None:
    for name, source in scripts.load_scripts().items():
        assert scripts.script_hashes()[name] == hashlib.sha1(source.encode()).hexdigest().encode()
        if hasattr(store, "client"):
            assert store.client.script_load(source).encode() == scripts.script_hashes()[name]


def test_routines_stand_in_front_in_the_order_named() -> None:
    whole = scripts.load_scripts()["reserve_and_record"]
    places = [
        whole.index(mark)
        for mark in ("local function below", "local function foreign", "local function plan")
    ]
    assert places == sorted(places)
    assert whole.rstrip().endswith("return reply")


def test_a_package_without_scripts_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scripts, "_PACKAGE", tmp_path / "qim")
    with pytest.raises(scripts.ScriptsMissing, match="lua/"):
        scripts.scripts_folder()
    beside = tmp_path / "qim" / "lua"
    beside.mkdir(parents=True)
    (beside / "reserve_and_record.lua").write_text("return 1")
    assert scripts.scripts_folder() == beside


@pytest.mark.parametrize("store", SERVERS, indirect=True)
def test_a_server_says_when_it_forgot_a_script(store: ServerStore) -> None:
    """NOSCRIPT is what the adapter loads and repeats on; a script never half runs because of it.

    The simulated keyspace holds compiled scripts: its world plays NOSCRIPT.
    """
    store.client.script_flush()
    with pytest.raises(Exception, match="No matching script"):
        store.raw(*codec.encode(sample(KINDS[0])))
    for source in scripts.load_scripts().values():
        store.client.script_load(source)
    assert store.raw(*codec.encode(sample(KINDS[0])))[0] == b"K"
