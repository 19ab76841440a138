"""How a mutant is made: one text in one function's source (or one script) is exchanged for another, and must be there."""

import ast
import inspect
import textwrap
from importlib import import_module
from types import CodeType, FunctionType

from qim.adapters.redis.scripts import load_scripts
from qim.sim.mutants import Override


class Unbound(AssertionError):
    """The rule a mutant breaks is no longer written as it was: look at the mutant again."""


def rewrite(name: str, *exchanges: tuple[str, str]) -> Override:
    """``name``: ``package.module:function`` or ``package.module:Class.method``; each text must stand exactly once."""
    module_name, _, path = name.partition(":")
    target: object = import_module(module_name)
    for part in path.split("."):
        if not hasattr(target, part):
            raise Unbound(f"{name}: no {part}")
        target = getattr(target, part)
    if not isinstance(target, FunctionType):
        raise Unbound(f"{name} is no function")
    source = textwrap.dedent(inspect.getsource(target))
    for old, new in exchanges:
        if source.count(old) != 1:
            raise Unbound(f"{name}: {source.count(old)} times {old!r}")
        source = source.replace(old, new)
    return Override(function=target, code=_compiled(target, source))


def _compiled(function: FunctionType, source: str) -> CodeType:
    tree = ast.parse(source)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise Unbound(f"{function.__qualname__} is no plain function")
    definition.decorator_list = []
    space = dict(function.__globals__)
    exec(compile(tree, f"<mutant of {function.__qualname__}>", "exec"), space)
    made = space[definition.name]
    assert isinstance(made, FunctionType)
    if made.__code__.co_freevars != function.__code__.co_freevars:
        raise Unbound(f"{function.__qualname__} closes over {function.__code__.co_freevars}")
    return made.__code__


def rescript(name: str, *exchanges: tuple[str, str]) -> dict[str, str]:
    """A script with texts exchanged; each must stand exactly once in the assembled source."""
    source = load_scripts()[name]
    for old, new in exchanges:
        if source.count(old) != 1:
            raise Unbound(f"{name}.lua: {source.count(old)} times {old!r}")
        source = source.replace(old, new)
    return {name: source}
