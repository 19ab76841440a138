"""House rules as tests: the tree obeys them, and each rule is shown a snippet that breaks it.

The rules are in tests/tidy/, one function each; docs/architecture.md, "House rules", says why.
"""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tidy import lua_rules, python_rules, tree_rules
from tests.tidy.finding import Finding

ROOT = Path(__file__).resolve().parent.parent
FILES = tree_rules.project_files(ROOT)
PYTHON = [name for name in FILES if name.endswith(".py")]
PRODUCT = [name for name in PYTHON if name.startswith("qim/")]
# The fake keyspace of the simulator is Lua too, but no script: it plays the server.
LUA = [name for name in FILES if name.startswith("lua/") and name.endswith(".lua")]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def numbered(cases: Sequence[object]) -> list[str]:
    """Ids that stay short however long the snippet is."""
    return [
        f"{case[0] if isinstance(case, tuple) else 'lua'}-{number}"
        for number, case in enumerate(cases)
    ]


def report(findings: list[Finding]) -> str:
    return "\n" + "\n".join(map(str, findings))


# ---------------------------------------------------------------- the tree


def test_python_sources_obey() -> None:
    assert PRODUCT, "no sources found: the rules would hold for nothing"
    findings = [found for name in PYTHON for found in python_rules.judge(name, read(name))]
    assert not findings, report(findings)


def test_scripts_obey() -> None:
    assert LUA, "no scripts found: the rules would hold for nothing"
    findings = [found for name in LUA for found in lua_rules.judge(name, read(name))]
    assert not findings, report(findings)


def test_every_file_obeys() -> None:
    assert "README.md" in FILES
    findings = [found for name in FILES for found in tree_rules.judge(name, read(name), ROOT)]
    assert not findings, report(findings)


def test_long_files_are_few() -> None:
    """400 lines are asked, 500 the wall; between them is room for one product file in ten."""
    asked = python_rules.FILE_LINES_ASKED
    long = [name for name in PRODUCT if read(name).count("\n") > asked]
    assert len(long) * 10 <= len(PRODUCT), long


def test_machines_exist_to_be_judged() -> None:
    """The shape rule must find the machines it is for: renamed verbs would make it hold for nothing."""
    found = {
        name.removeprefix("qim/core/").removesuffix(".py").split("/")[0]
        for name in PRODUCT
        if name.startswith("qim/core/") and list(python_rules.machines(ast.parse(read(name))))
    }
    assert {"audit", "client", "fanout", "gateway", "lease", "mailbox", "writer"} <= found, found


# ---------------------------------------------------------------- the rules can fail

CORE = "qim/core/writer.py"
CONTRACT = "qim/core/contract/ids.py"
SIM = "qim/sim/world.py"
ADAPTER = "qim/adapters/redis/port.py"
LONG_BODY = "def f() -> int:\n" + "    x = 1\n" * 70 + "    return x\n"
DIAGRAM = "Delivers, never stores.\n\nOPENING --> SERVING --> CLOSED\n"
MACHINE = (
    "class Mill:\n    def step(self): ...\n    def deadline(self): ...\n    def check(self): ...\n"
)

BAD_PYTHON = [
    ("file_length", CORE, "x = 1\n" * 501),
    ("file_length", "tests/core/test_x.py", "x = 1\n" * 701),
    ("function_length", ADAPTER, LONG_BODY),
    ("function_length", "tests/core/test_x.py", LONG_BODY.replace("def", "async def")),
    ("vague_name", "qim/services/utils.py", ""),
    ("vague_name", "tests/helpers/data.py", ""),
    ("vague_name", "qim/core/common/ids.py", ""),
    ("alias", ADAPTER, "class ConnectionServer: ..."),
    ("alias", CORE, "class InboxNode: ..."),
    ("alias", CORE, "def f(msg_id): ..."),
    ("alias", CORE, "conv_id = 1"),
    ("alias", CORE, "x.client_msg_id"),
    ("contract_imports", CONTRACT, "import anyio"),
    ("contract_imports", CONTRACT, "from qim.core.writer import Writer"),
    ("contract_imports", CONTRACT, "import pathlib"),
    ("core_imports", CORE, "from qim.adapters.redis import codec"),
    ("worldly_import", CORE, "import time"),
    ("worldly_import", CORE, "from random import randint"),
    ("worldly_import", SIM, "import os.path"),
    ("worldly_import", SIM, "def f():\n    import asyncio"),
    ("banned_call", CORE, "hash(x)"),
    ("banned_call", SIM, "key = id(x)"),
    ("banned_call", CORE, "open('x')"),
    ("swallowed_cancel", ADAPTER, "async def f():\n    await asyncio.wait_for(x, 1)"),
    ("global_state", CORE, "SEEN = {}"),
    ("global_state", CORE, "SEEN: list[int] = []"),
    ("global_state", CORE, "SEEN = set()"),
    ("global_state", SIM, "def f():\n    global seen\n    seen = 1"),
    ("set_order", CORE, "for x in {1, 2}: ..."),
    ("set_order", SIM, "for x in set(y): ..."),
    ("set_order", CORE, "[x for x in {y for y in z}]"),
    ("set_order", CORE, "tuple({1, 2})"),
    ("set_order", CORE, "seen: set[int] = set()\nfor x in seen: ..."),
    ("set_order", CORE, "class A:\n    def f(self):\n        self.s = set()\n        list(self.s)"),
    ("set_order", CORE, "def f(users: frozenset[int]):\n    return [u for u in users]"),
    ("set_order", CORE, "def f(a: set[int], b: set[int]):\n    for x in a - b: ..."),
    ("set_order", CORE, "s = set()\ns.pop()"),
    ("set_order", CORE, "s = {1}\nf(*s)"),
    ("machine_shape", CORE, f'"""Does not store."""\n{MACHINE}'),
    ("machine_shape", CORE, f'"""A --> B"""\n{MACHINE}'),
    ("machine_shape", CORE, f'"""{DIAGRAM}"""\n' + MACHINE.replace("check", "verify")),
    (
        "machine_shape",
        CORE,
        f'"""{DIAGRAM}"""\n{MACHINE}    def __init__(self):\n'
        + "".join(f"        self.a{n} = 0\n" for n in range(31)),
    ),
]

GOOD_PYTHON = [
    (CORE, f'"""{DIAGRAM}"""\n{MACHINE}'),
    (CORE, "from qim.core.contract.ids import message_id\nimport hashlib, msgspec"),
    (CONTRACT, "import enum\nimport msgspec\nimport xxhash\nfrom qim.core.contract import params"),
    (
        CORE,
        "def f(seen: set[int]):\n    for x in sorted(seen): ...\n    return len(seen), 1 in seen",
    ),
    (CORE, "TABLE = {1: 2}\nNAMES = ('a', 'b')"),
    (ADAPTER, "import time, os\nhash(x)\nfor x in {1, 2}: ..."),
    (SIM, "REGISTRY = {}\nopen('plan.json')"),
    ("tests/core/test_x.py", "import time\nid(x)"),
    (CORE, 'def f() -> int:\n    """' + "x\n" * 80 + '    """\n    return 1\n'),
]

HEADER = "-- KEYS: 1 fence\n-- ARGV: 1 epoch\n-- Reply: 1 ok\n"

BAD_LUA = [
    ("lua_header", "return 1\n"),
    ("lua_header", "-- KEYS and ARGV, but what comes back is a secret\nreturn 1\n"),
    ("lua_header", "return 1\n" + HEADER),
    ("lua_values", HEADER + "local x = tonumber(ARGV[1])\n"),
    ("lua_values", HEADER + "local k = KEYS[1] .. ':x'\n"),
    ("lua_values", HEADER + "if a < b then return 1 end\n"),
    ("lua_values", HEADER + "if a >= b then return 1 end -- allow: short\n"),
    ("lua_values", HEADER + "-- allow-file (tonumber): counts stay below 2^53\nreturn a .. b\n"),
    ("lua_purity", HEADER + "return math.random(7)\n"),
    ("lua_purity", HEADER + "return redis.call('TIME')\n"),
    ("lua_purity", HEADER + 'return redis.call("SRANDMEMBER", KEYS[1])\n'),
]

GOOD_LUA = [
    HEADER + "return redis.call('GET', KEYS[1])\n",
    "--[[ KEYS: one, ARGV: none,\n Reply: its value ]]\nreturn redis.call('GET', KEYS[1])\n",
    HEADER + "local x = tonumber(ARGV[1]) -- allow: a count of arguments\n",
    HEADER + "-- allow: fixed-width parts on both sides\nlocal k = a .. b\n",
    HEADER + "-- allow-file (<, tonumber): only counts of arguments\nif a < tonumber(b) then end\n",
    HEADER + "-- a < b .. tonumber\nlocal s = 'a < b .. tonumber' local f = function(...) end\n",
]

BAD_TEXT = [
    ("unfinished", "qim/x.py", "# TO" + "DO later"),
    ("unfinished", "docs/x.md", "FIX" + "ME"),
    ("machine_path", "docs/x.md", "see /ho" + "me/me/qim"),
    ("machine_path", "qim/x.py", "p = '/ro" + "ot/data'"),
    ("dead_link", "docs/x.md", "[a](nowhere.md)"),
    ("dead_link", "docs/x.md", "[a](../README.md#no-such-heading)"),
    ("dead_path", "docs/x.md", "see `qim/core/nowhere.py`"),
    ("dead_citation", "qim/x.py", '"""As hearsay.md has it."""'),
    ("dead_citation", "lua/x.lua", "-- pipeline.md §1.77"),
    ("unknown_target", "docs/x.md", "run `make coffee`"),
]

GOOD_TEXT = [
    ("docs/x.md", "[a](../README.md) and [b](https://example.org/a) and `make test`"),
    ("docs/x.md", "see `qim/core/contract/ids.py` and `lua/`"),
    ("qim/x.py", '"""OPEN (pipeline.md §1.6), contract.md."""'),
    ("docs/x.md", "a route /metrics, a ratio km/home/run, ~/work"),
    ("qim/x.py", "x = 'XXL'  # todos los dias"),
]


@pytest.mark.parametrize(("rule", "path", "source"), BAD_PYTHON, ids=numbered(BAD_PYTHON))
def test_python_rule_catches(rule: str, path: str, source: str) -> None:
    assert rule in {found.rule for found in python_rules.judge(path, source)}


@pytest.mark.parametrize(("path", "source"), GOOD_PYTHON, ids=numbered(GOOD_PYTHON))
def test_python_rules_let_pass(path: str, source: str) -> None:
    assert python_rules.judge(path, source) == []


@pytest.mark.parametrize(("rule", "source"), BAD_LUA, ids=numbered(BAD_LUA))
def test_lua_rule_catches(rule: str, source: str) -> None:
    assert rule in {found.rule for found in lua_rules.judge("lua/x.lua", source)}


@pytest.mark.parametrize("source", GOOD_LUA, ids=numbered(GOOD_LUA))
def test_lua_rules_let_pass(source: str) -> None:
    assert lua_rules.judge("lua/x.lua", source) == []


@pytest.mark.parametrize(("rule", "path", "source"), BAD_TEXT, ids=numbered(BAD_TEXT))
def test_tree_rule_catches(rule: str, path: str, source: str) -> None:
    assert rule in {found.rule for found in tree_rules.judge(path, source, ROOT)}


@pytest.mark.parametrize(("path", "source"), GOOD_TEXT, ids=numbered(GOOD_TEXT))
def test_tree_rules_let_pass(path: str, source: str) -> None:
    assert tree_rules.judge(path, source, ROOT) == []


def test_every_rule_is_shown_to_fail() -> None:
    shown = {rule for rule, *_ in [*BAD_PYTHON, *BAD_LUA, *BAD_TEXT]}
    rules = [*python_rules.RULES, *lua_rules.RULES, *tree_rules.RULES]
    assert {rule.__name__ for rule in rules} == shown
