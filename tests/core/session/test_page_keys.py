"""Page keys of the list: ids of any bytes, equal activities, every page size (bug reports of kind F: raw or non-unique keys)."""

import pytest
from msgspec.structs import replace

from qim.core.contract import routing
from tests.core.session.scene import CONFIG, EVERYONE, Scene, shown
from tests.core.session.toy_writer import WRITERS, Conversation

EDGES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
LIMITS = (1, 2, 5, 7, 10, 23, 24, 25, 100)


def strange_names() -> list[bytes]:
    """Ids that are prefixes of each other up to their last bytes, with bytes that a text would end or be encoded at."""
    names = [bytes([first]) * 15 + bytes([last]) for first in EDGES for last in EDGES]
    names.remove(bytes(16))  # an id is never all zero
    return names


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("user", [1, 2**63 + 1])
def test_strange_ids_page_complete_and_without_repeats(user: int, equal: bool) -> None:
    scene = Scene(replace(CONFIG, page_default=7, page_max=25))
    names = strange_names()
    assert len({routing.writer_shard(name, WRITERS) for name in names}) == WRITERS
    same = scene.writer.activity()
    if equal:
        scene.writer.activity = lambda: same  # type: ignore[method-assign]
    for name in names:
        scene.writer.conversations[name] = Conversation(name, {**EVERYONE, user: 0})
        scene.say(name, 3)
    scene.run()
    wanted = scene.expected(user, {})
    assert len(wanted) == len(names)
    for limit in LIMITS:
        assert shown(scene.pages(user, limit)) == wanted, limit
    if equal:
        assert [row.conversation_id for row in scene.pages(user)] == sorted(names, reverse=True)


def test_a_key_that_was_never_a_row_s_goes_on_below_it() -> None:
    scene = Scene()
    names = [scene.group(number, EVERYONE) for number in range(3)]
    for name in names:
        scene.say(name, 2)
    scene.run()
    page = scene.page(1)
    rows = page.rows
    for at, row in enumerate(rows):
        key = row.last_activity_id + b"\xff" * 16
        assert scene.page(1, page.revision, key).rows == rows[at:]
        key = row.last_activity_id + b"\x00" * 16
        assert scene.page(1, page.revision, key).rows == rows[at + 1 :]
    assert scene.page(1, page.revision, bytes(32)).rows == ()
    assert scene.page(1, page.revision, b"\xff" * 32).rows == rows
