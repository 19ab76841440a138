"""The part of Prometheus' query language that our rules are written in, evaluated over series made by hand.

After Prometheus' documentation of its operators and functions: an instant selector sees the newest sample of the last five
minutes, a range the samples within it, increase() needs two of them and takes a fall for a restart. It doesn't extrapolate
(whoever asks whether anything rose at all gets the same answer), and takes no quantiles. Where Prometheus refuses to answer (two
series of a side for one match), so does this: a rule that does so never rings.
"""

import math
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

LOOK_BACK_SECONDS: Final = 300.0
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
COMPUTED: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "*": operator.mul,
    "/": lambda one, other: (
        one / other if other else math.copysign(math.inf, one) if one else math.nan
    ),
}
TOKEN: Final = re.compile(
    r"\s*(?:(?P<duration>\d+[smhd]\b)|(?P<number>\d+(?:\.\d+)?)|(?P<word>[a-zA-Z_][\w]*)"
    r'|(?P<text>"[^"]*")|(?P<sign>=~|!~|!=|==|[-+*/<>=(){}\[\],]))'
)

Labels = frozenset[tuple[str, str]]
Samples = list[tuple[float, float]]
"""(seconds, value), rising."""
Vector = dict[Labels, float]
Series = Mapping[tuple[str, Labels], Samples]
Matcher = tuple[str, str, str]


def evaluate(expression: str, series: Series, at: float) -> Vector | float:
    """The instant vector, or the number, that ``expression`` is at ``at``. Raises AssertionError for what isn't known here."""
    query = _Query(_tokens(expression), series, at)
    found = query.alternatives()
    assert not query.rest, f"not understood from {query.rest[:5]} on: {expression}"
    return found


def _tokens(expression: str) -> list[str]:
    found, at = [], 0
    while at < len(expression.rstrip()):
        match = TOKEN.match(expression, at)
        assert match is not None, expression[at:]
        found.append(match.group().strip())
        at = match.end()
    return found


class _Query:
    """Reads and evaluates in one go, the loosest operator first."""

    def __init__(self, tokens: list[str], series: Series, at: float) -> None:
        self.rest = tokens
        self._series = series
        self._at = at

    def alternatives(self) -> Vector | float:
        """``or`` binds loosest: what the left side has not, the right side adds."""
        left = self._without()
        while self._taken("or"):
            left = {**_vector(self._without()), **_vector(left)}
        return left

    def _without(self) -> Vector | float:
        left = self._comparison()
        while self._taken("unless"):
            right = _vector(self._comparison())
            left = {labels: value for labels, value in _vector(left).items() if labels not in right}
        return left

    def _comparison(self) -> Vector | float:
        left = self._sum()
        while self.rest and self.rest[0] in COMPARED:
            holds = COMPARED[self.rest.pop(0)]
            on = self._on()
            left = _filtered(_vector(left), self._sum(), on, holds)
        return left

    def _sum(self) -> Vector | float:
        left = self._product()
        while self.rest and self.rest[0] == "+":
            left = _computed(left, self._next(), self._on(), self._grouped(), self._product())
        return left

    def _product(self) -> Vector | float:
        left = self._one()
        while self.rest and self.rest[0] in ("*", "/"):
            left = _computed(left, self._next(), self._on(), self._grouped(), self._one())
        return left

    def _one(self) -> Vector | float:
        first = self._next()
        if first == "(":
            found = self.alternatives()
            self._expect(")")
            return found
        if first[0].isdigit():
            return float(first)
        if first == "sum":
            return self._summed()
        if first == "absent":
            return self._absent()
        if first == "label_replace":
            return self._relabelled()
        if first in ("increase", "rate"):
            self._expect("(")
            risen = self._risen(per_second=first == "rate")
            self._expect(")")
            return risen
        return self._instant(first)

    def _summed(self) -> Vector:
        kept: tuple[str, ...] = ()
        if self._taken("by"):
            kept = self._names()
        self._expect("(")
        summed: Vector = {}
        for labels, value in _vector(self.alternatives()).items():
            key = _only(labels, kept)
            summed[key] = summed.get(key, 0.0) + value
        self._expect(")")
        return summed

    def _absent(self) -> Vector:
        """Where nothing is found: 1, with the labels that were asked for by their value."""
        self._expect("(")
        name, matchers = self._next(), self._matchers()
        self._expect(")")
        if self._latest(name, matchers, self._at):
            return {}
        return {frozenset((label, value) for label, sign, value in matchers if sign == "="): 1.0}

    def _relabelled(self) -> Vector:
        self._expect("(")
        found = _vector(self.alternatives())
        texts = []
        while self._taken(","):
            texts.append(self._next().strip('"'))
        self._expect(")")
        target, value, source, wanted = texts
        assert "$" not in value, "groups of the pattern are not known here"
        replaced: Vector = {}
        for labels, number in found.items():
            told = dict(labels)
            if re.fullmatch(wanted, told.get(source, "")):
                told[target] = value
            key = frozenset(told.items())
            assert key not in replaced, "two series of the same labels"
            replaced[key] = number
        return replaced

    def _risen(self, *, per_second: bool) -> Vector:
        name = self._next()
        matchers = self._matchers()
        self._expect("[")
        seconds = _seconds(self._next())
        self._expect("]")
        end = self._at - self._offset()
        found: Vector = {}
        for labels, samples in self._selected(name, matchers):
            values = _within(samples, end - seconds, end)
            if len(values) >= 2:
                pairs = pairwise(values)
                risen = sum(new - old if new >= old else new for old, new in pairs)
                found[labels] = risen / seconds if per_second else risen
        return found

    def _instant(self, name: str) -> Vector:
        matchers = self._matchers()
        return self._latest(name, matchers, self._at - self._offset())

    # ------------------------------------------------------------ parts of the above

    def _latest(self, name: str, matchers: list[Matcher], end: float) -> Vector:
        found: Vector = {}
        for labels, samples in self._selected(name, matchers):
            seen = _within(samples, end - LOOK_BACK_SECONDS, end)
            if seen:
                found[labels] = seen[-1]
        return found

    def _selected(self, name: str, matchers: list[Matcher]) -> list[tuple[Labels, Samples]]:
        return [
            (labels, samples)
            for (called, labels), samples in self._series.items()
            if called == name and all(_matches(dict(labels), one) for one in matchers)
        ]

    def _matchers(self) -> list[Matcher]:
        found: list[Matcher] = []
        if self._taken("{"):
            while not self._taken("}"):
                found.append((self._next(), self._next(), self._next().strip('"')))
                self._taken(",")
        return found

    def _offset(self) -> float:
        return _seconds(self._next()) if self._taken("offset") else 0.0

    def _on(self) -> tuple[str, ...] | None:
        return self._names() if self._taken("on") else None

    def _grouped(self) -> bool:
        """Many of the left side to one of the right."""
        return self._taken("group_left")

    def _names(self) -> tuple[str, ...]:
        self._expect("(")
        names = []
        while not self._taken(")"):
            names.append(self._next())
            self._taken(",")
        return tuple(names)

    def _taken(self, token: str) -> bool:
        if self.rest and self.rest[0] == token:
            self.rest = self.rest[1:]
            return True
        return False

    def _expect(self, token: str) -> None:
        assert self._taken(token), f"{token} expected before {self.rest[:5]}"

    def _next(self) -> str:
        assert self.rest, "it ends too early"
        first, *self.rest = self.rest
        return first


def _within(samples: Samples, begin: float, end: float) -> list[float]:
    first = bisect_left(samples, begin, key=lambda one: one[0])
    return [
        value for _, value in samples[first : bisect_right(samples, end, key=lambda one: one[0])]
    ]


def _seconds(duration: str) -> float:
    return float(duration[:-1]) * UNITS[duration[-1]]


def _matches(labels: Mapping[str, str], matcher: Matcher) -> bool:
    name, sign, wanted = matcher
    value = labels.get(name, "")
    same = value == wanted if sign in ("=", "!=") else re.fullmatch(wanted, value) is not None
    return same if sign in ("=", "=~") else not same


def _vector(found: Vector | float) -> Vector:
    assert isinstance(found, dict), f"{found} is no vector"
    return found


def _only(labels: Labels, names: tuple[str, ...] | None) -> Labels:
    return labels if names is None else frozenset(one for one in labels if one[0] in names)


Matched = list[tuple[Labels, float, float]]


def _matched(
    left: Vector, right: Vector | float, on: tuple[str, ...] | None, *, many: bool
) -> Matched:
    """(labels of the result, left, right) of every pair. Raises AssertionError where Prometheus would fail the query."""
    if isinstance(right, float):
        return [(labels, value, right) for labels, value in left.items()]
    partners: Vector = {}
    for labels, value in right.items():
        assert _only(labels, on) not in partners, "many of the right side match"
        partners[_only(labels, on)] = value
    found: Matched = []
    seen: set[Labels] = set()
    for labels, value in left.items():
        key = _only(labels, on)
        if key in partners:
            assert many or key not in seen, "many of the left side match, without group_left"
            seen.add(key)
            found.append((labels if many else key, value, partners[key]))
    return found


def _filtered(
    left: Vector,
    right: Vector | float,
    on: tuple[str, ...] | None,
    holds: Callable[[float, float], bool],
) -> Vector:
    pairs = _matched(left, right, on, many=False)
    return {labels: value for labels, value, other in pairs if holds(value, other)}


def _computed(
    left: Vector | float,
    sign: str,
    on: tuple[str, ...] | None,
    many: bool,
    right: Vector | float,
) -> Vector | float:
    compute = COMPUTED[sign]
    if isinstance(left, float):
        assert isinstance(right, float), "a number before a vector"
        return compute(left, right)
    pairs = _matched(left, right, on, many=many)
    return {labels: compute(value, other) for labels, value, other in pairs}
