"""The digest of a dispatch is H over the fields that contract.md names, however it is framed."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from qim.core.contract.entities import GroupDispatch
from qim.core.contract.hashing import H
from qim.core.dispatch_digest import materialisation_digest

ids = st.binary(min_size=16, max_size=16) | st.binary(max_size=40)
numbers = st.integers(0, 2**64 - 1)
fields = {
    "message_id": ids,
    "conversation_id": ids,
    "body_digest": ids,
    "membership_digest": ids,
    "conversation_seq": numbers,
    "sender_id": numbers,
    "kind": st.integers(0, 255),
    "version": st.integers(0, 3),
    "recipients": st.lists(numbers, max_size=70).map(tuple),
}


@given(st.fixed_dictionaries(fields))
def test_it_is_h_over_the_fields_of_the_contract(drawn: dict[str, object]) -> None:
    empty = {bytes: b"", str: "", int: 0, tuple[int, ...]: (), bytes | None: None}
    hints = msgspec.structs.fields(GroupDispatch)
    one = GroupDispatch(**{field.name: empty[field.type] for field in hints} | drawn)
    if one.recipients or not one.version:
        audience: tuple[int | bytes | str, ...] = ("users", len(one.recipients), *one.recipients)
    else:
        audience = ("version", one.version, one.membership_digest)
    assert materialisation_digest(one) == H(
        "qim.materialise",
        one.message_id,
        one.conversation_id,
        one.conversation_seq,
        one.kind,
        one.sender_id,
        one.body_digest,
        *audience,
    )
