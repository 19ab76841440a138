"""From a file and the environment to Settings: the environment goes before the file, unknown names are errors.

A file is TOML, flat, its keys the variables' names without QIM_ in small letters: ``redis_addr = "10.0.0.5:6379"``.
"""

import difflib
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from qim.adapters.start_refused import StartRefused
from qim.core.contract.redact import secret_digest
from qim.services.settings.model import Settings
from qim.services.settings.obsolete import ELSEWHERE, OBSOLETE_BY_NAME, TEST_PREFIX, Obsolete
from qim.services.settings.table import BY_NAME, PREFIX, VARIABLES, Variable

FILE_VARIABLE: Final = "QIM_CONFIG"
_ENVIRONMENT: Final = "environment"
_NEAR: Final = 0.6


class Reading(Struct, frozen=True, kw_only=True):
    """Settings, where each told value came from, every fault and what is let pass but does nothing."""

    settings: Settings
    sources: Mapping[str, str]
    faults: tuple[StartRefused, ...]
    remarks: tuple[str, ...]

    def require(self) -> Settings:
        """The settings. Raises StartRefused with the first fault."""
        if self.faults:
            raise self.faults[0]
        return self.settings


def read_settings(environment: Mapping[str, str], file: Path | None = None) -> Reading:
    """``file``: --config, else QIM_CONFIG of the environment, else none. Raises nothing: faults are in the answer."""
    told = environment.get(FILE_VARIABLE)
    path = file or (Path(told) if told else None)
    words = _Words()
    if path is not None:
        words.take_file(path)
    words.take_environment(environment)
    return words.reading()


class _Words:
    """Gathers texts by variable name, later ones over earlier ones."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.faults: list[StartRefused] = []
        self.remarks: list[str] = []

    def take_environment(self, environment: Mapping[str, str]) -> None:
        for name in sorted(environment):
            if not name.startswith(PREFIX) or name.startswith(TEST_PREFIX) or name in ELSEWHERE:
                continue
            self._take(name, environment[name], _ENVIRONMENT, name)

    def take_file(self, path: Path) -> None:
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            refused = StartRefused(
                "config_file",
                f"the configuration file {path}",
                got=str(error),
                expected="TOML that can be read",
                command=_edit(str(path)),
            )
            self.faults.append(refused)
            return
        for key, value in found.items():
            name = f"{PREFIX}{key.upper()}"
            text = _as_text(value)
            if key != key.lower():
                self._unknown(key, str(path))
            elif text is None:
                got = f"a {type(value).__name__}"
                self._value_fault(name, got, "a text, number, bool or list", str(path))
            else:
                self._take(name, text, str(path), key)

    def reading(self) -> Reading:
        return Reading(
            settings=Settings(**self.values),
            sources=dict(self.sources),
            faults=tuple(self.faults),
            remarks=tuple(self.remarks),
        )

    def _take(self, name: str, text: str, source: str, written: str) -> None:
        variable, obsolete = BY_NAME.get(name), OBSOLETE_BY_NAME.get(name)
        if obsolete is not None:
            self._obsolete(obsolete, text, source)
        elif variable is None:
            self._unknown(written, source)
        else:
            self._known(variable, text, source)

    def _known(self, variable: Variable, text: str, source: str) -> None:
        try:
            value = variable.kind.read(text)
        except ValueError:
            shown = repr(text) if variable.conceal is None else secret_digest(text)
            expected = f"{variable.kind.expected}{variable.kind.more}"
            self._value_fault(variable.name, shown, expected, source)
            return
        self.values[variable.key] = value
        self.sources[variable.name] = source

    def _obsolete(self, obsolete: Obsolete, text: str, source: str) -> None:
        if obsolete.harmless in ("*", text):
            self.remarks.append(
                f"{obsolete.name} ({source}) does nothing: {obsolete.why}; instead: {obsolete.instead}"
            )
            return
        deprecated = obsolete.name == "QIM_STORE_BACKEND"
        key = obsolete.name.removeprefix(PREFIX).lower()
        refused = StartRefused(
            "store_backend_deprecated" if deprecated else "config_obsolete",
            f"{obsolete.name} ({source})",
            got=repr(text),
            expected=f"not set, for {obsolete.why}; instead: {obsolete.instead}",
            command=_command(source, f"unset {obsolete.name}", f"without {key}"),
        )
        self.faults.append(refused)

    def _unknown(self, written: str, source: str) -> None:
        in_file = source != _ENVIRONMENT
        known = [one.key if in_file else one.name for one in VARIABLES]
        near = difflib.get_close_matches(written, known, n=1, cutoff=_NEAR)
        nearest = f", the nearest is {near[0]}" if near else ""
        renamed = f"{near[0]} instead of {written}" if near else f"without {written}"
        refused = StartRefused(
            "config_unknown_key",
            f"the key in {source}" if in_file else "the variable of the environment",
            got=repr(written),
            expected=f"a known name{nearest}",
            command=_command(source, f"unset {shlex.quote(written)}", renamed),
        )
        self.faults.append(refused)

    def _value_fault(self, name: str, got: str, expected: str, source: str) -> None:
        key = name.removeprefix(PREFIX).lower()
        what = name if source == _ENVIRONMENT else f"{name} ({key} in {source})"
        command = _command(source, f"export {name}=…", f"{key} = …")
        self.faults.append(
            StartRefused("config_value", what, got=got, expected=expected, command=command)
        )


def _command(source: str, in_environment: str, in_file: str) -> str:
    """Where it was said it must be mended: a fault of the file stays one whatever the environment says."""
    return in_environment if source == _ENVIRONMENT else f"{_edit(source)}  # {in_file}"


def _edit(path: str) -> str:
    return f"${{EDITOR:-vi}} {shlex.quote(path)}"


def _as_text(value: Any) -> str | None:
    """A TOML value as it would stand in the environment; None for what has no such form."""
    match value:
        case bool():
            return "1" if value else "0"
        case int() | str():
            return str(value)
        case list():
            parts = [_as_text(one) for one in value]
            nested = any(isinstance(one, list) for one in value)
            known = [part for part in parts if part is not None]
            return None if nested or len(known) < len(parts) else ",".join(known)
        case _:
            return None
