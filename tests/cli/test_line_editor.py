"""The chat's line editor, typed into as a terminal would."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from qim.cli.chat.editor import LineEditor, Signal
from qim.cli.chat.screen import visible

LEFT, RIGHT, UP, DOWN = "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B"


@pytest.mark.parametrize(
    ("keys", "text", "cursor"),
    [
        ("hello", "hello", 5),
        ("hellp\x7fo", "hello", 5),
        ("ello\x01h", "hello", 1),
        (f"hllo{LEFT * 3}e", "hello", 2),
        (f"helo{LEFT}l{RIGHT}{RIGHT}!", "hello!", 6),
        ("one two \x17", "one ", 4),
        ("one two\x15", "", 0),
        (f"hello{LEFT * 2}\x0b", "hel", 3),
        ("xhello\x1b[H\x1b[3~", "hello", 0),
        ("h\x1b[99;5~i", "hi", 2),
        ("a\x00\x1b[Zb", "ab", 2),
        ("日本\x7f語", "日語", 2),
        ("\x1b[200~two\rlines\x1b[201~", "two\nlines", 9),
    ],
)
def test_keys(keys: str, text: str, cursor: int) -> None:
    for pieces in ([keys], list(keys)):
        editor = LineEditor()
        for piece in pieces:
            assert editor.feed(piece) == []
        assert (editor.text, editor.cursor) == (text, cursor)


def test_enter_submits_and_empty_lines_do_not() -> None:
    editor = LineEditor()
    assert editor.feed("one\rtwo\n  \r\r") == ["one", "two"]
    assert editor.text == ""


def test_history_goes_back_and_the_draft_comes_again() -> None:
    editor = LineEditor()
    editor.feed("one\rtwo\rdraft")
    seen = []
    for key in (UP, UP, UP, DOWN, DOWN, DOWN):
        editor.feed(key)
        seen.append(editor.text)
    assert seen == ["two", "one", "one", "two", "draft", "draft"]


def test_signals() -> None:
    editor = LineEditor()
    assert editor.feed("\x03\x04\x0c") == [Signal.INTERRUPT, Signal.END, Signal.REDRAW]
    assert editor.feed("ab\x01\x04") == []
    assert editor.text == "b", "Ctrl-D deletes where something is typed"


@given(st.text(), st.integers(0, 50), st.integers(8, 40))
def test_what_is_visible_fits(text: str, cursor: int, room: int) -> None:
    before, after = visible(text, min(cursor, len(text)), room)
    assert cell_len(before + after) <= room


@given(st.text(alphabet="ab\r\x1b[A20~\x7f\x01\x05\x04\x17", max_size=60), st.integers(0, 60))
def test_pieces_mean_the_same(keys: str, cut: int) -> None:
    whole, parts = LineEditor(), LineEditor()
    told = whole.feed(keys)
    assert told == parts.feed(keys[:cut]) + parts.feed(keys[cut:])
    assert (whole.text, whole.cursor) == (parts.text, parts.cursor)
