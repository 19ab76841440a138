"""House rules of the store's scripts (docs/architecture.md, "One meaning for the store").

Values in the store can be wider than a double holds, and the server's locale decides how `<` orders
strings: arithmetic, concatenation and comparison are therefore exceptions that carry their reason.

    x = a .. b               -- allow: both parts have a fixed width
    -- allow-file (tonumber): ARGV counts stay far below 2^53

An allow comment stands at the end of its line or alone on the line before.
"""

import re
from collections.abc import Callable, Iterator

from tests.tidy.finding import Finding, line_of

REASON_LETTERS_MIN = 8
HEADER_WORDS = ("KEYS", "ARGV", "Reply")
FORBIDDEN = {
    "tonumber": re.compile(r"\btonumber\b"),
    "..": re.compile(r"(?<!\.)\.\.(?!\.)"),
    "<": re.compile(r"[<>]=?"),
}
IMPURE = re.compile(
    r"""\b(math\.random(?:seed)?|os\.\w+|io\.\w+|loadstring|dofile|require|replicate_commands)\b"""
)
IMPURE_COMMAND = re.compile(
    r"""redis\.p?call\s*\(\s*(['"])(time|randomkey|srandmember|spop|keys|scan|flushall|flushdb)\1""",
    re.IGNORECASE,
)
# strings first, so that `--` inside one is no comment
TOKENS = re.compile(
    r"""(?P<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\[(?P<eq>=*)\[.*?\](?P=eq)\])"""
    r"""|(?P<comment>--\[(?P<ceq>=*)\[.*?\](?P=ceq)\]|--[^\n]*)""",
    re.DOTALL,
)
ALLOW_LINE = re.compile(r"--\s*allow:\s*(?P<why>.*)")
ALLOW_FILE = re.compile(r"--\s*allow-file\s*\((?P<what>[^)]*)\):\s*(?P<why>.*)")


def _blank(source: str, *, strings: bool) -> str:
    """The source with comments (and strings, if asked) blanked out, every line kept in place."""

    def replace(match: re.Match[str]) -> str:
        if match["comment"] is None and not strings:
            return match[0]
        return re.sub(r"[^\n]", " ", match[0])

    return TOKENS.sub(replace, source)


def _allowed_lines(source: str) -> set[int]:
    allowed: set[int] = set()
    for number, line in enumerate(source.split("\n"), start=1):
        found = ALLOW_LINE.search(line)
        if found and len(found["why"].strip()) >= REASON_LETTERS_MIN:
            allowed.add(number)
            if line.lstrip().startswith("--"):
                allowed.add(number + 1)
    return allowed


def _allowed_in_file(source: str) -> set[str]:
    allowed: set[str] = set()
    for found in ALLOW_FILE.finditer(source):
        if len(found["why"].strip()) >= REASON_LETTERS_MIN:
            allowed.update(what.strip() for what in found["what"].split(","))
    return allowed


def lua_header(path: str, source: str) -> Iterator[Finding]:
    """The comment a file opens with names what a caller must hand over and what comes back."""
    opening = re.match(r"(?:--\[(=*)\[.*?\]\1\]|[ \t]*--[^\n]*\n|\s*\n)*", source, re.DOTALL)
    header = opening[0] if opening else ""
    for word in HEADER_WORDS:
        if not re.search(rf"\b{word}\b", header, re.IGNORECASE):
            yield Finding(path, 1, "lua_header", f"the header doesn't say {word}")


def lua_values(path: str, source: str) -> Iterator[Finding]:
    code = _blank(source, strings=True)
    lines, in_file = _allowed_lines(source), _allowed_in_file(source)
    for name, pattern in FORBIDDEN.items():
        if name in in_file:
            continue
        for match in pattern.finditer(code):
            line = line_of(code, match)
            if line not in lines:
                text = f"`{match[0]}` on a value needs `-- allow: reason` on its line"
                yield Finding(path, line, "lua_values", text)


def lua_purity(path: str, source: str) -> Iterator[Finding]:
    for pattern, code in (
        (IMPURE, _blank(source, strings=True)),
        (IMPURE_COMMAND, _blank(source, strings=False)),
    ):
        for match in pattern.finditer(code):
            text = f"{match[0]}: a script is a function of its keys and arguments"
            yield Finding(path, line_of(code, match), "lua_purity", text)


Rule = Callable[[str, str], Iterator[Finding]]
RULES: tuple[Rule, ...] = (lua_header, lua_values, lua_purity)


def judge(path: str, source: str) -> list[Finding]:
    """Every finding of every rule in one script."""
    return sorted({finding for rule in RULES for finding in rule(path, source)})
