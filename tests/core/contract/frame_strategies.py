"""Hypothesis strategies for every frame, read from the frames' own field types, so a new frame is tested unasked."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from qim.core.contract.frames import FRAMES, SendMessage, Signal, WireFrame
from qim.core.contract.sequences import U64_MAX

NIL = bytes(16)


def value(field_type: Any) -> st.SearchStrategy[Any]:
    """Values a field of this type may have, zero ids left out (a frame's `fault` refuses them)."""
    if get_origin(field_type) is Annotated:
        base, *metas = get_args(field_type)
        return bounded(base, metas[0])
    if get_origin(field_type) in (Union, UnionType):
        return st.one_of([value(member) for member in get_args(field_type)])
    if get_origin(field_type) is tuple:
        return st.lists(value(get_args(field_type)[0]), max_size=4).map(tuple)
    if field_type is type(None):
        return st.none()
    if field_type is bool:
        return st.booleans()
    assert issubclass(field_type, msgspec.Struct), field_type
    return struct(field_type)


def bounded(base: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    if base is int:
        assert meta.ge is not None
        return st.integers(int(meta.ge), U64_MAX if meta.le is None else int(meta.le))
    least, greatest = meta.min_length or 0, meta.max_length
    assert greatest is not None
    if base is bytes:
        found = st.binary(min_size=least, max_size=min(greatest, 80))
        return found.filter(lambda data: data != NIL) if least == 16 else found
    if base is str:
        # Four bytes of UTF-8 a character at most: a text this short keeps every bound in bytes too.
        return st.text(st.characters(exclude_categories=("Cs",)), max_size=greatest // 4)
    return value(base)


def fields_of(kind: type[msgspec.Struct]) -> dict[str, st.SearchStrategy[Any]]:
    return {field.name: value(field.type) for field in msgspec.structs.fields(kind)}


def struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(fields_of(kind)).map(lambda values: kind(**values))


def frame_of(kind: type[WireFrame]) -> st.SearchStrategy[WireFrame]:
    """Legal frames of one kind."""
    return struct(kind).filter(lambda frame: frame.fault() is None)


def _strategies() -> Iterator[st.SearchStrategy[WireFrame]]:
    for kind in FRAMES:
        if kind is Signal:
            yield signals()
        elif kind is SendMessage:
            yield frame_of(kind)
        else:
            yield struct(kind)


def signals() -> st.SearchStrategy[WireFrame]:
    """SIGNAL names exactly one of conversation and peer."""
    fields = fields_of(Signal)
    to_peer = {**fields, "conversation_id": st.none(), "peer_user_id": st.integers(1, U64_MAX)}
    to_many = {
        **fields,
        "conversation_id": st.binary(min_size=16, max_size=16),
        "peer_user_id": st.none(),
    }
    one_of = st.one_of(st.fixed_dictionaries(to_peer), st.fixed_dictionaries(to_many))
    return one_of.map(lambda values: Signal(**values)).filter(lambda frame: frame.fault() is None)


FRAME_STRATEGIES = dict(zip(FRAMES, _strategies(), strict=True))
any_frame = st.one_of(list(FRAME_STRATEGIES.values()))
