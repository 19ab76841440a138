"""A chat: typed lines become messages and commands, messages become lines; unsettled sends stay in sight.

Marks: ⋯ kept here and on its way, ✓ durable on the server, ✗ refused for good.
"""

import argparse
import asyncio
import contextlib
import os
from collections import deque
from typing import Any, Final

from msgspec import Struct
from rich.text import Text

from qim.cli.arguments import count, id16, user_id, user_ids
from qim.cli.chat.screen import Screen
from qim.cli.output import (
    clock,
    conversation_label,
    conversation_line,
    other_user,
    printable,
    shown_body,
)
from qim.client import (
    Client,
    LocalStoreUnusable,
    NotConnected,
    SendFailed,
    SendStatus,
    Sent,
)
from qim.client.results import state_text
from qim.core.client.vocabulary import ClientState
from qim.core.contract.entities import MessageKind
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.params import DEFAULT
from qim.core.ports.local_store import LocalMessage

OWN_KINDS: Final = (MessageKind.TEXT, MessageKind.CUSTOM)
UNSETTLED_MAX: Final = 200
SEEN_MAX: Final = 1_000
SETTLE_SECONDS: Final = 24 * 3600.0
LEAVE_SECONDS: Final = 5.0
LISTED_MAX: Final = 20
ONLINE_SECONDS: Final = 10.0
HISTORY_DEFAULT: Final = 20
HELP: Final = """\
/to USER            write to this user
/group ID           write to this group (or the first letters of one seen here)
/new USER[,USER…] [NAME]   create a group and write to it
/add USER[,USER…]   /remove USER[,USER…]   /leave   /members
/history [N]        the newest N messages of this conversation, with their numbers
/recall [SEQ]       take back the last message of yours, or that number   /delete SEQ   for you alone
/list               conversations, unread first   /pin /mute /hide   this one, again: undone
/help  /quit        Ctrl-D leaves too
anything else is sent; a line that begins with // is sent with one /"""


class Room(Struct, frozen=True, kw_only=True):
    """Where lines go: a single chat (peer) or a group."""

    conversation_id: bytes
    peer: int = 0

    @property
    def label(self) -> str:
        """A short name."""
        return f"@{self.peer}" if self.peer else f"#{self.conversation_id.hex()[:8]}"


class Session:
    """One user at one screen."""

    def __init__(self, client: Client, screen: Screen, user: int, tenant_id: str) -> None:
        self._client = client
        self._screen = screen
        self._user = user
        self._tenant_id = tenant_id
        self._room: Room | None = None
        self._unsettled: dict[bytes, tuple[Room, str]] = {}
        self._sending: dict[bytes, asyncio.Task[None]] = {}
        self._mine: deque[bytes] = deque(maxlen=SEEN_MAX)
        self._groups: dict[bytes, None] = {}
        self._last: dict[bytes, int] = {}  # the newest own message of a room, for /recall
        self._commands = {
            "/to": self._to,
            "/group": self._group,
            "/new": self._new,
            "/add": self._add,
            "/remove": self._remove,
            "/leave": self._leave,
            "/members": self._members,
            "/history": self._history,
            "/recall": self._recall,
            "/delete": self._delete,
            "/list": self._list,
            "/pin": lambda rest: self._switch("pinned"),
            "/mute": lambda rest: self._switch("muted"),
            "/hide": lambda rest: self._switch("hidden"),
            "/help": self._help,
        }

    async def run(self, room: Room | None) -> None:
        """Until the user leaves. Raises NotConnected when the connection is over for good."""
        self._room = room
        self._remark("/help says what can be typed")
        self._show()
        greeting = asyncio.ensure_future(self._greet())
        tasks = [
            asyncio.ensure_future(self._listen()),
            asyncio.ensure_future(self._watch()),
            asyncio.ensure_future(self._type()),
        ]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in (greeting, *rest):
            task.cancel()
        await asyncio.gather(greeting, *rest, return_exceptions=True)
        for task in done:
            task.result()
        await self._leave_calmly()

    # ---------------------------------------------------------------- loops

    async def _type(self) -> None:
        while (line := await self._screen.line()) is not None:
            if line.strip() in ("/quit", "/exit"):
                return
            await self._typed(line)
            self._show()

    async def _greet(self) -> None:
        """What is unread, once it is known; chatting doesn't wait for it."""
        with contextlib.suppress(NotConnected):
            await self._client.listed(SETTLE_SECONDS)
            rows = [row for row in await self._client.conversations() if row.unread]
            for row in rows[:LISTED_MAX]:
                self._remark(conversation_line(row, self._user))
            badge = await self._client.unread()
            if badge.count:
                self._remark(f"{badge.count}{'' if badge.exact else '+'} unread; /list shows all")

    async def _listen(self) -> None:
        async for message in self._client.messages():
            if message.sender_id == self._user and message.kind in OWN_KINDS:
                self._last[message.conversation_id] = message.conversation_seq
            if message.client_message_id in self._mine:
                continue
            if not message.peer_user_id:
                self._groups[message.conversation_id] = None
            if self._room is None and message.sender_id != self._user:
                self._enter(self._room_of(message))
            self._screen.log(self._line(message))
            if self._room is not None and message.conversation_id == self._room.conversation_id:
                await self._read(message.conversation_id, message.conversation_seq)

    async def _watch(self) -> None:
        told = ""
        while self._client.state.state != ClientState.STOPPED:
            online = self._client.state.state == ClientState.ONLINE
            now = "connected" if online else "not connected, trying; what you send is kept"
            if now != told and (told or online):
                self._remark(now)
            told = now
            self._show()
            await self._client.next_state()
        raise NotConnected(state_text(self._client.state), refused=True)

    async def _leave_calmly(self) -> None:
        """Acks on their way may still come; what stays unsettled goes out the next time."""
        if self._sending:
            await asyncio.wait(self._sending.values(), timeout=LEAVE_SECONDS)
        for task in self._sending.values():
            task.cancel()
        if self._unsettled:
            self._remark(f"{len(self._unsettled)} not acked yet: kept, and sent the next time")

    # ---------------------------------------------------------------- lines

    async def _typed(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if line.startswith("/") and not line.startswith("//"):
            command = self._commands.get(word)
            if command is None:
                self._remark(f"{word}: no such command; /help lists them")
                return
            try:
                await command(rest.strip())
            except (ValueError, argparse.ArgumentTypeError) as error:
                self._remark(str(error))
            except SendFailed as error:
                self._remark(f"refused: {error}")
            except NotConnected as error:
                self._remark(f"not connected: {error}")
            except TimeoutError:
                self._remark("no answer in time; it may still be done")
            except LocalStoreUnusable as error:
                self._remark(str(error))
            return
        self._send(line.removeprefix("/"))

    def _send(self, text: str) -> None:
        if self._room is None:
            self._remark("to whom? /to USER or /group ID first")
        elif len(self._unsettled) >= UNSETTLED_MAX:
            self._remark("too much is on its way; wait for the acks")
        else:
            key = os.urandom(16)
            self._mine.append(key)
            self._unsettled[key] = (self._room, text)
            self._sending[key] = asyncio.ensure_future(self._settle(key, self._room, text))

    async def _settle(self, key: bytes, room: Room, text: str) -> None:
        try:
            sent = await self._client.send(
                text.encode(
                    errors="surrogateescape"
                ),  # what is no text is sent bit for bit, as `qim send` does
                to=room.peer or None,
                conversation_id=None if room.peer else room.conversation_id,
                client_message_id=key,
                timeout=SETTLE_SECONDS,
            )
        except (SendFailed, NotConnected, LocalStoreUnusable) as error:
            sent = Sent(client_message_id=key, status=SendStatus.FAILED, code=str(error))
        if sent.status is SendStatus.PENDING:
            return
        del self._unsettled[key]
        self._sending.pop(key, None)
        at = sent.coordinates
        if at is not None:
            self._last[at.conversation_id] = at.conversation_seq
        mark = Text(f"✗ {sent.code}", "red") if at is None else Text("✓", "green")
        stamp = clock(at.sent_at) if at else "--:--:--"
        where = "" if room == self._room else f" {room.label}"
        self._screen.log(
            Text.assemble(
                (stamp, "dim"), "  ", ("you", "cyan"), where, f": {printable(text)} ", mark
            )
        )
        self._show()

    # ---------------------------------------------------------------- commands

    async def _to(self, rest: str) -> None:
        peer = user_id(rest)
        found = single_conversation_id(self._tenant_id, self._user, peer)
        await self._go(Room(conversation_id=found, peer=peer))

    async def _group(self, rest: str) -> None:
        begin = rest.removeprefix("#").lower()
        seen = [known for known in self._groups if begin and known.hex().startswith(begin)]
        await self._go(Room(conversation_id=seen[0] if len(seen) == 1 else id16(rest)))

    async def _new(self, rest: str) -> None:
        users, _, name = rest.partition(" ")
        made = await self._client.create_group(user_ids(users), name.strip())
        self._groups[made.conversation_id] = None
        self._enter(Room(conversation_id=made.conversation_id))
        self._remark(f"the group's id: {made.conversation_id.hex()}")

    async def _add(self, rest: str) -> None:
        done = await self._client.add_members(self._here(), user_ids(rest))
        self._remark("nothing changed" if done.noop else f"version {done.version}")

    async def _remove(self, rest: str) -> None:
        done = await self._client.remove_members(self._here(), user_ids(rest))
        self._remark("nothing changed" if done.noop else f"version {done.version}")

    async def _leave(self, rest: str) -> None:
        await self._client.leave(self._here())
        self._remark("left")

    async def _members(self, rest: str) -> None:
        here = self._here()
        await self._client.online(ONLINE_SECONDS)
        told = await self._client.members(here)
        users = ", ".join(map(str, sorted(told.added)))
        self._remark(f"{printable(told.name)} version {told.version}: {users}")

    async def _history(self, rest: str) -> None:
        limit = int(rest) if rest.isdigit() else HISTORY_DEFAULT
        here = self._here()
        await self._client.online(ONLINE_SECONDS)
        page = await self._client.history(here, limit=max(1, min(limit, DEFAULT.page_max)))
        for message in page.messages:
            self._screen.log(self._line(message, numbered=True))
        self._remark("older ones: /history N" if page.has_more else "that is all")

    async def _recall(self, rest: str) -> None:
        here = self._here()
        seq = count(rest) if rest else self._last.get(here, 0)
        if not seq:
            raise ValueError("which one? /history shows the numbers")
        sent = await self._client.recall(here, seq)
        self._remark(f"message {seq}: {'recalled' if sent.coordinates else sent.code or 'later'}")

    async def _delete(self, rest: str) -> None:
        seq = count(rest)
        sent = await self._client.delete_for_me(self._here(), seq)
        told = "deleted for you" if sent.coordinates else sent.code or "later"
        self._remark(f"message {seq}: {told}")

    async def _list(self, rest: str) -> None:
        rows = await self._client.conversations(hidden=True)
        for row in sorted(rows, key=lambda row: not row.unread)[:LISTED_MAX]:
            self._remark(conversation_line(row, self._user))
        self._remark(f"{len(rows)} conversations")

    async def _switch(self, name: str) -> None:
        here = self._here()
        row = await self._client.conversation(here)
        wanted = not (row is not None and getattr(row, name))
        change: dict[str, Any] = {name: wanted}
        await self._client.set_state(here, **change, timeout=None)
        self._remark(f"{name}: {'yes' if wanted else 'no'}")

    async def _help(self, rest: str) -> None:
        for line in HELP.splitlines():
            self._remark(line)

    # ---------------------------------------------------------------- shown

    def _here(self) -> bytes:
        if self._room is None:
            raise ValueError("where? /to USER or /group ID first")
        return self._room.conversation_id

    def _room_of(self, message: LocalMessage) -> Room:
        peer = other_user(message, self._user)
        return Room(conversation_id=message.conversation_id, peer=peer)

    def _enter(self, room: Room) -> None:
        self._room = room
        self._remark(f"you write to {room.label}")
        self._show()

    async def _go(self, room: Room) -> None:
        """Enter, and what was shown of it is read."""
        self._enter(room)
        row = await self._client.conversation(room.conversation_id)
        if row is not None and row.newest_seq > row.read_seq:
            await self._read(room.conversation_id, row.newest_seq)

    async def _read(self, conversation_id: bytes, seq: int) -> None:
        """Shown in the room one is in: read, on every device, as soon as it can be said."""
        with contextlib.suppress(SendFailed):
            await self._client.mark_read(conversation_id, seq, timeout=None)

    def _line(self, message: LocalMessage, *, numbered: bool = False) -> Text:
        here = self._room is not None and message.conversation_id == self._room.conversation_id
        own = message.sender_id == self._user
        who = "you" if own else str(message.sender_id)
        where = "" if here else f" {conversation_label(message, self._user)}"
        number = f"{message.conversation_seq:>4}  " if numbered else ""
        return Text.assemble(
            (number + clock(message.sent_at), "dim"),
            "  ",
            (who, "cyan" if own else "bold"),
            (where, "magenta"),
            f": {shown_body(message)}",
        )

    def _remark(self, text: str) -> None:
        self._screen.log(Text(text, "dim"))

    def _show(self) -> None:
        lines = [
            Text.assemble(("⋯ ", "yellow"), f"{room.label}: {printable(text)}")
            for room, text in self._unsettled.values()
        ]
        online = self._client.state.state == ClientState.ONLINE
        label = self._room.label if self._room else "nobody"
        self._screen.below(lines, f"{'●' if online else '○'} {label} › ")
