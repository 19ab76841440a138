"""The store's scripts as they are sent: `lua/<request>.lua` with the shared routines it names in front.

A script says `-- Uses: compare, guard` and gets `lua/lib/compare.lua` and `lua/lib/guard.lua` prepended in that order.
The folder is `lua/` at the root of a source tree and `qim/lua` in an installed package, the same files.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent.parent.parent
_USES: Final = re.compile(r"^-- Uses: *([a-z_, ]+)$", re.MULTILINE)


class ScriptsMissing(Exception):
    """Neither the package nor the source tree holds the scripts: a broken installation."""


def scripts_folder() -> Path:
    """Where the `.lua` files are. Raises ScriptsMissing."""
    for folder in (_PACKAGE / "lua", _PACKAGE.parent / "lua"):
        if (folder / "reserve_and_record.lua").is_file():
            return folder
    raise ScriptsMissing(f"no lua/ in {_PACKAGE} nor in {_PACKAGE.parent}")


def _assembled(source: str, routines: Mapping[str, str]) -> str:
    used = _USES.search(source)
    names = [name.strip() for name in used[1].split(",")] if used else []
    return "\n".join([*(routines[name] for name in names), source])


@cache
def load_scripts() -> Mapping[str, str]:
    """Name -> whole source of every script, in the order of names."""
    folder = scripts_folder()
    routines = {file.stem: file.read_text("utf-8") for file in (folder / "lib").glob("*.lua")}
    return MappingProxyType(
        {
            file.stem: _assembled(file.read_text("utf-8"), routines)
            for file in sorted(folder.glob("*.lua"))
        }
    )


@cache
def script_hashes() -> Mapping[str, bytes]:
    """Name -> SHA-1 in hex, as EVALSHA wants it."""
    return MappingProxyType(
        {
            name: hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().encode()
            for name, source in load_scripts().items()
        }
    )
