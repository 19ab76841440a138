"""Where a chat is shown: a log that scrolls, below it what is on its way and the line being typed.

What comes while one types is printed above the line, which is drawn again. Without a terminal on both sides the same
session reads lines and writes lines.
"""

import asyncio
import codecs
import os
import shutil
import sys
import termios
import tty
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from qim.cli.chat.editor import LineEditor, Signal
from qim.cli.output import printable

READ_BYTES: Final = 4096
LINES_WAITING_MAX: Final = 100
BELOW_LINES_MAX: Final = 5


class Screen(Protocol):
    """What a session needs of it."""

    def log(self, line: Text) -> None:
        """Print above the typed line; stays."""

    def below(self, lines: Sequence[Text], prompt: str) -> None:
        """What stands between log and typed line, and what stands before the latter."""

    async def line(self) -> str | None:
        """The next submitted line; None: the user leaves."""


class PlainScreen:
    """Lines in, lines out: for pipes, and for terminals that can't draw."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)

    def log(self, line: Text) -> None:
        self._console.print(line)
        sys.stdout.flush()

    def below(self, lines: Sequence[Text], prompt: str) -> None:
        """Nothing is drawn that would have to be drawn again."""

    async def line(self) -> str | None:
        while True:
            # A thread of its own: a pipe can be a file, which no event loop watches. Bytes that are no UTF-8 stay what they
            # are, whatever the locale makes of them.
            data: bytes = await asyncio.to_thread(sys.stdin.buffer.readline)
            line = data.decode(errors="surrogateescape")
            if not line:
                return None
            if line.strip():
                return line.rstrip("\r\n")


class TerminalScreen:
    """A terminal in raw mode, with a line editor at its bottom."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False)
        self._editor = LineEditor()
        self._lines: list[Text] = []
        self._prompt = "> "
        self._drawn = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._submitted: asyncio.Queue[str | None] = asyncio.Queue(LINES_WAITING_MAX)

    def log(self, line: Text) -> None:
        self._clear()
        self._console.print(line)
        self._draw()

    def below(self, lines: Sequence[Text], prompt: str) -> None:
        self._clear()
        self._lines, self._prompt = list(lines)[-BELOW_LINES_MAX:], prompt
        self._draw()

    async def line(self) -> str | None:
        return await self._submitted.get()

    def typed(self, data: bytes) -> None:
        """Bytes as the terminal sends them; none: it is gone."""
        for told in self._editor.feed(self._decode(data)) if data else [Signal.END]:
            if told is Signal.REDRAW:
                self._console.clear()
                self._drawn = 0
            elif isinstance(told, Signal):
                self._submit(None)
            else:
                self._submit(told)
        self._clear()
        self._draw()

    def leave(self) -> None:
        """The cursor below everything."""
        self._clear()
        sys.stdout.flush()

    def _submit(self, line: str | None) -> None:
        if not self._submitted.full():
            self._submitted.put_nowait(line)

    def _clear(self) -> None:
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        sys.stdout.write(f"\r{up}\x1b[J")
        self._drawn = 0

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns
        for line in self._lines:
            shown = line.copy()
            shown.truncate(width - 1, overflow="ellipsis")
            self._console.print(shown)
        self._drawn = len(self._lines)
        room = max(width - cell_len(self._prompt) - 1, 8)
        before, after = visible(self._editor.text, self._editor.cursor, room)
        back = f"\x1b[{cell_len(after)}D" if after else ""
        sys.stdout.write(f"\r{self._prompt}{before}{after}{back}")
        sys.stdout.flush()


def visible(text: str, cursor: int, room: int) -> tuple[str, str]:
    """The part of the line around the cursor that fits ``room`` cells: before the cursor, and after it."""
    before, after = printable(text[:cursor]), printable(text[cursor:])
    while cell_len(before) > room:
        before = before[1:]
    while cell_len(after) > room - cell_len(before):
        after = after[:-1]
    return before, after


@asynccontextmanager
async def opened_screen() -> AsyncIterator[Screen]:
    """The terminal, given back as it was; plain lines where there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        yield PlainScreen()
        return
    screen = TerminalScreen()
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()
    tty.setcbreak(descriptor)
    raw = termios.tcgetattr(descriptor)
    raw[3] &= ~(termios.ISIG | termios.IEXTEN)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, raw)
    sys.stdout.write("\x1b[?2004h")
    loop.add_reader(descriptor, lambda: screen.typed(os.read(descriptor, READ_BYTES)))
    try:
        yield screen
    finally:
        loop.remove_reader(descriptor)
        screen.leave()
        sys.stdout.write("\x1b[?2004l")
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
