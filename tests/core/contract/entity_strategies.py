"""Hypothesis strategies for whole structs, read from their own annotations, so a new field is drawn unasked.

Unlike frame_strategies these know no bounds: what is stored and what goes between processes must survive whatever value a
field can hold, ids of every byte value and integers up to the edges of u64 among them.
"""

from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

EDGES = (0, 1, 2**31 - 1, 2**31, 2**48, 2**48 + 6, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)

integers = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1))
any_bytes = st.one_of(
    st.binary(max_size=40),
    st.binary(min_size=16, max_size=16),
    st.just(bytes(16)),
    st.just(bytes(range(256))),
)
any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def value(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value of this annotation."""
    if get_origin(annotation) in (Union, UnionType):
        return st.one_of([value(member) for member in get_args(annotation)])
    if get_origin(annotation) is tuple:
        element, *rest = get_args(annotation)
        assert rest == [Ellipsis], annotation
        return st.lists(value(element), max_size=3).map(tuple)
    known = {int: integers, bytes: any_bytes, str: any_text, bool: st.booleans()}
    if annotation in known:
        return known[annotation]
    if annotation is type(None):
        return st.none()
    assert issubclass(annotation, msgspec.Struct), annotation
    return whole(annotation)


def whole(kind: type[Any], **fixed: Any) -> st.SearchStrategy[Any]:
    """Any struct of this kind; ``fixed`` fields keep their value."""
    hints = get_type_hints(kind)
    names = [field.name for field in msgspec.structs.fields(kind) if field.name not in fixed]
    drawn = st.fixed_dictionaries({name: value(hints[name]) for name in names})
    return drawn.map(lambda values: kind(**values, **fixed))
