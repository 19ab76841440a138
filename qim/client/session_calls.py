"""The part of ``Client`` about conversations: list, unread, read marks, own states, recall (pipeline.md §§4, 5).

What is asked here is answered from the local store, offline too; what is changed here is durable before it is sent.
"""

import asyncio
import os
from abc import ABC, abstractmethod

from qim.client import given
from qim.client.driver import ClientDriver, wall_ms
from qim.client.local_store import KnownConversation, LocalStore
from qim.client.results import Conversation, NotConnected, Sent, Unread, state_text
from qim.client.waiting import Waiting, until_kept
from qim.core.client.vocabulary import (
    ClientConfig,
    MarkReadRequested,
    OverlayRequested,
    ReadByArrived,
    ReadByRequested,
    StateChanged,
    StateRequested,
)
from qim.core.contract.entities import EMPTY_ID, MessageKind
from qim.core.contract.kinds import StateFlag
from qim.core.contract.user_state import (
    UserState,
    decode_user_state,
    encode_user_state,
    is_hidden,
    is_muted,
)


class SessionCalls(ABC):
    """Methods of ``Client``; from its event loop only."""

    config: ClientConfig
    _waiting: Waiting
    _state: StateChanged
    _ready: bool
    _devices: tuple[tuple[bytes, int], ...]
    _changing: asyncio.Lock

    @abstractmethod
    def _alive(self) -> ClientDriver:
        """The driver. Raises NotConnected after the end."""

    @abstractmethod
    def _stopped(self) -> bool:
        """Does the connection wait for the user."""

    @abstractmethod
    async def _submitted(
        self, client_message_id: bytes, request: OverlayRequested, timeout: float | None
    ) -> Sent:
        """Post a request that becomes a pending row, and wait as ``send`` does."""

    async def listed(self, timeout: float = 30.0) -> None:
        """Wait until the session list of this login is here, and exact unread of what was in the mailbox at the last ``sync``.

        A conversation whose first message is pushed later is inexact until it is pulled too. Raises NotConnected.
        """
        with self._waiting.listed() as future:
            self._alive()
            if self._ready:
                return
            if self._stopped():
                raise NotConnected(state_text(self._state), refused=True)
            try:
                async with asyncio.timeout(timeout):
                    await future
            except TimeoutError:
                raise NotConnected(
                    f"no session list after {timeout:g} s: {state_text(self._state)}"
                ) from None

    async def conversations(self, *, hidden: bool = False) -> list[Conversation]:
        """All conversations as known here, pinned ones first, then the latest activity first; ``hidden``: those too.

        Before ``listed`` the list may lack some, and unread is a lower bound.
        """
        window = self.config.parameters.unread_window_max
        user = self.config.user_id
        known: list[KnownConversation] = await self._alive().on_store_thread(
            lambda store: store.conversations(user, window)
        )
        rows = [self._shown(one) for one in known if one.row.last_activity_id != EMPTY_ID]
        return sorted(
            (row for row in rows if hidden or not row.hidden), key=lambda row: not row.pinned
        )

    async def conversation(self, conversation_id: bytes) -> Conversation | None:
        """One row of the list, hidden or not; None: not known here."""
        rows = await self.conversations(hidden=True)
        return next((row for row in rows if row.conversation_id == conversation_id), None)

    async def unread(self) -> Unread:
        """The badge: the sum of unread, muted conversations excluded."""
        rows = [row for row in await self.conversations(hidden=True) if not row.muted]
        return Unread(
            count=sum(row.unread for row in rows), exact=all(row.unread_exact for row in rows)
        )

    def devices(self) -> dict[bytes, int]:
        """device_id --> mailbox_seq up to which that device of the user holds the mailbox, at least.

        As the server told at the last synchronisation of states (``listed``, then every minute); empty before the first.
        """
        return dict(self._devices)

    async def mark_read(
        self, conversation_id: bytes, up_to: int | None = None, *, timeout: float | None = 15.0
    ) -> bool:
        """Read up to conversation_seq ``up_to`` (None: all that is known here), on every device; never backwards.

        True: the server has it; False: kept here, and sent as soon as it can be (timeout None: don't wait). Raises
        SendFailed where it is refused for good.
        """
        conversation_id = given.octets("conversation_id", conversation_id)
        if up_to is None:
            known = await self.conversation(conversation_id)
            up_to = max(known.newest_seq, known.read_seq) if known else 0
        with self._waiting.state() as (ticket, kept, settled):
            self._alive().post(
                MarkReadRequested(
                    ticket=ticket,
                    conversation_id=conversation_id,
                    read_seq=given.whole("up_to", up_to),
                )
            )
            await until_kept(kept)
            return await self._at_server(settled, timeout)

    async def set_state(
        self,
        conversation_id: bytes,
        *,
        pinned: bool | None = None,
        muted: bool | None = None,
        mute_until: int | None = None,
        hidden: bool | None = None,
        marked_unread: bool | None = None,
        draft: str | None = None,
        timeout: float | None = 15.0,
    ) -> bool:
        """Change the user's own state of a conversation; what is None stays. The user's other devices follow.

        mute_until: wall ms (0: for ever), mutes. hidden: out of the list until something newer comes. Returns and raises
        as ``mark_read``; ValueError: the draft is too long, or no text.
        """
        conversation_id = given.octets("conversation_id", conversation_id)
        if draft is not None:
            draft = given.text("draft", draft)
        async with self._changing:
            row = await self._alive().on_store_thread(
                lambda store: LocalStore.conversation(store, conversation_id)
            )
            old = decode_user_state(row.value)
            flags = row.flags
            if mute_until is not None:
                mute_until = given.whole("mute_until", mute_until)
                muted = True
            for flag, wanted in (
                (StateFlag.PINNED, pinned),
                (StateFlag.MUTED, muted),
                (StateFlag.ARCHIVED, hidden),
            ):
                if wanted is not None:
                    flags = flags | flag if wanted else flags & ~flag
            until = mute_until if mute_until is not None else (old.mute_until, 0)[muted is not None]
            value = UserState(
                mute_until=until,
                marked_unread=old.marked_unread if marked_unread is None else marked_unread,
                hidden_through=row.last_activity_id if hidden else old.hidden_through,
                draft=old.draft if draft is None else draft,
            )
            return await self._change_state(conversation_id, flags, value, timeout)

    async def recall(
        self, conversation_id: bytes, conversation_seq: int, *, timeout: float | None = 15.0
    ) -> Sent:
        """Recall a message for everyone, who is offline too: the own ones within the recall window, or as the group's

        creator. Waits and answers as ``send``.
        """
        return await self._overlay(MessageKind.RECALL, conversation_id, conversation_seq, timeout)

    async def delete_for_me(
        self, conversation_id: bytes, conversation_seq: int, *, timeout: float | None = 15.0
    ) -> Sent:
        """Hide a message from this user alone, on every device. Waits and answers as ``send``."""
        return await self._overlay(
            MessageKind.DELETE_FOR_ME, conversation_id, conversation_seq, timeout
        )

    async def read_by(
        self, conversation_id: bytes, conversation_seq: int, *, timeout: float = 15.0
    ) -> ReadByArrived:
        """Members that have read up to conversation_seq; has_more: a large group, not all are named. Raises SendFailed,

        TimeoutError.
        """
        with self._waiting.ticket() as (ticket, future):
            self._alive().post(
                ReadByRequested(
                    ticket=ticket,
                    conversation_id=given.octets("conversation_id", conversation_id),
                    conversation_seq=given.whole("conversation_seq", conversation_seq),
                )
            )
            async with asyncio.timeout(timeout):
                answer = await future
        assert isinstance(answer, ReadByArrived)
        return answer

    async def _change_state(
        self, conversation_id: bytes, flags: int, value: UserState, timeout: float | None
    ) -> bool:
        with self._waiting.state() as (ticket, kept, settled):
            self._alive().post(
                StateRequested(
                    ticket=ticket,
                    conversation_id=conversation_id,
                    flags=flags,
                    value=encode_user_state(value),
                    wall=wall_ms(),
                )
            )
            await until_kept(kept)
            return await self._at_server(settled, timeout)

    async def _at_server(self, settled: "asyncio.Future[None]", timeout: float | None) -> bool:
        if timeout is None or (self._stopped() and not settled.done()):
            return False
        try:
            async with asyncio.timeout(timeout):
                await settled
        except TimeoutError:
            return False
        return True

    async def _overlay(
        self, kind: MessageKind, conversation_id: bytes, seq: int, timeout: float | None
    ) -> Sent:
        cmid = os.urandom(16)
        request = OverlayRequested(
            client_message_id=cmid,
            kind=int(kind),
            conversation_id=given.octets("conversation_id", conversation_id),
            target_seq=given.whole("conversation_seq", seq),
            wall=wall_ms(),
        )
        return await self._submitted(cmid, request, timeout)

    def _shown(self, known: KnownConversation) -> Conversation:
        row = known.row
        state = decode_user_state(row.value)
        others = [user for user in row.peers if user != self.config.user_id]
        count, within = known.unread
        return Conversation(
            conversation_id=row.conversation_id,
            kind=row.conversation_kind,
            peer_user_id=(others or list(row.peers) or [0])[0],
            last_activity_id=row.last_activity_id,
            preview=known.preview,
            unread=count,
            unread_exact=within and known.filled and self._ready,
            read_seq=row.read_seq,
            newest_seq=known.newest_seq,
            pinned=bool(row.flags & StateFlag.PINNED),
            muted=is_muted(row.flags, row.value, wall_ms()),
            muted_until=state.mute_until,
            hidden=is_hidden(row.flags, row.value, row.last_activity_id),
            marked_unread=state.marked_unread,
            draft=state.draft,
        )
