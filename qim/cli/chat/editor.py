"""One line being typed: keys in, text and what was submitted out. Knows no terminal; a test types into it.

Keys as a terminal in raw mode sends them: UTF-8 text, control characters, escape sequences, bracketed paste. A sequence
may arrive in pieces; its beginning waits for the rest.
"""

import re
from enum import Enum
from typing import Final

TEXT_CHARS_MAX: Final = 32_768
HISTORY_LINES_MAX: Final = 500
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[@-~])")
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)?$")
_PASTE_BEGIN: Final = "\x1b[200~"
_PASTE_END: Final = "\x1b[201~"


class Signal(Enum):
    """What a key asks for besides editing."""

    INTERRUPT = 1
    END = 2
    REDRAW = 3


class LineEditor:
    """``text`` and ``cursor`` (a place in it); ``feed`` gives submitted lines and signals in their order."""

    def __init__(self) -> None:
        self.text = ""
        self.cursor = 0
        self._waiting = ""
        self._pasting = False
        self._history: list[str] = []
        self._back = 0
        self._draft = ""

    def feed(self, data: str) -> "list[str | Signal]":
        """Keys in order. A submitted line is never empty."""
        data, self._waiting = self._waiting + data, ""
        told: list[str | Signal] = []
        at = 0
        while at < len(data):
            if data[at] == "\x1b":
                found = _SEQUENCE.match(data, at)
                if found is None and _UNFINISHED.match(data, at):
                    self._waiting = data[at:]
                    break
                at = found.end() if found else at + 1
                self._sequence(found[0] if found else "")
                continue
            self._key(data[at], told)
            at += 1
        return told

    def _key(self, key: str, told: "list[str | Signal]") -> None:
        if self._pasting:
            self._insert("\n" if key == "\r" else key)
        elif key in "\r\n":
            self._submit(told)
        elif key == "\x03":
            told.append(Signal.INTERRUPT)
        elif key == "\x04":
            self._delete(told)
        elif key == "\x0c":
            told.append(Signal.REDRAW)
        elif key in _EDITS:
            _EDITS[key](self)
        elif key.isprintable():
            self._insert(key)

    def _sequence(self, sequence: str) -> None:
        if sequence == _PASTE_BEGIN:
            self._pasting = True
        elif sequence == _PASTE_END:
            self._pasting = False
        elif sequence in _MOVES:
            _MOVES[sequence](self)

    def _insert(self, text: str) -> None:
        if len(self.text) < TEXT_CHARS_MAX and (text.isprintable() or text == "\n"):
            self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
            self.cursor += len(text)

    def _submit(self, told: "list[str | Signal]") -> None:
        line = self.text
        self._replace("")
        self._back = 0
        if line.strip():
            told.append(line)
            self._history = [*self._history, line][-HISTORY_LINES_MAX:]

    def _delete(self, told: "list[str | Signal]") -> None:
        """Ctrl-D: end where nothing is typed, else the character under the cursor."""
        if self.text:
            self._delete_right()
        else:
            told.append(Signal.END)

    def _replace(self, text: str) -> None:
        self.text, self.cursor = text, len(text)

    def _delete_left(self) -> None:
        if self.cursor:
            self.text = self.text[: self.cursor - 1] + self.text[self.cursor :]
            self.cursor -= 1

    def _delete_right(self) -> None:
        self.text = self.text[: self.cursor] + self.text[self.cursor + 1 :]

    def _delete_word(self) -> None:
        kept = self.text[: self.cursor].rstrip()
        kept = kept[: kept.rfind(" ") + 1]
        self.text, self.cursor = kept + self.text[self.cursor :], len(kept)

    def _delete_to_start(self) -> None:
        self.text, self.cursor = self.text[self.cursor :], 0

    def _delete_to_end(self) -> None:
        self.text = self.text[: self.cursor]

    def _left(self) -> None:
        self.cursor = max(self.cursor - 1, 0)

    def _right(self) -> None:
        self.cursor = min(self.cursor + 1, len(self.text))

    def _home(self) -> None:
        self.cursor = 0

    def _end(self) -> None:
        self.cursor = len(self.text)

    def _older(self) -> None:
        if self._back < len(self._history):
            if self._back == 0:
                self._draft = self.text
            self._back += 1
            self._replace(self._history[-self._back])

    def _newer(self) -> None:
        if self._back > 0:
            self._back -= 1
            self._replace(self._history[-self._back] if self._back else self._draft)


_EDITS: Final = {
    "\x01": LineEditor._home,
    "\x02": LineEditor._left,
    "\x05": LineEditor._end,
    "\x06": LineEditor._right,
    "\x08": LineEditor._delete_left,
    "\x0b": LineEditor._delete_to_end,
    "\x0e": LineEditor._newer,
    "\x10": LineEditor._older,
    "\x15": LineEditor._delete_to_start,
    "\x17": LineEditor._delete_word,
    "\x7f": LineEditor._delete_left,
}
_MOVES: Final = {
    "\x1b[A": LineEditor._older,
    "\x1b[B": LineEditor._newer,
    "\x1b[C": LineEditor._right,
    "\x1b[D": LineEditor._left,
    "\x1b[H": LineEditor._home,
    "\x1b[F": LineEditor._end,
    "\x1bOH": LineEditor._home,
    "\x1bOF": LineEditor._end,
    "\x1bOA": LineEditor._older,
    "\x1bOB": LineEditor._newer,
    "\x1bOC": LineEditor._right,
    "\x1bOD": LineEditor._left,
    "\x1b[1~": LineEditor._home,
    "\x1b[4~": LineEditor._end,
    "\x1b[3~": LineEditor._delete_right,
}
