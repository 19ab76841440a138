"""The wheel is complete: modules, type marker, every script; nothing of the tests."""

import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return set(zipfile.ZipFile(built).namelist())


def test_wheel_holds_every_script(wheel: set[str]) -> None:
    scripts = {f"qim/{file.relative_to(ROOT).as_posix()}" for file in ROOT.glob("lua/**/*.lua")}
    assert scripts
    assert scripts <= wheel


def test_wheel_holds_every_module_and_the_type_marker(wheel: set[str]) -> None:
    modules = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.glob("qim/**/*")
        if file.suffix in {".py", ".lua"} or file.name == "py.typed"
    }
    assert "qim/py.typed" in modules
    assert modules <= wheel


def test_wheel_holds_nothing_else(wheel: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel} <= {"qim", "qim-0.1.0.dist-info"}
    assert not [name for name in wheel if "__pycache__" in name]
