"""The part of ``Client`` about groups: membership changes, durable here before they are sent, and who is in (pipeline.md §1.9)."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable

from qim.client import given
from qim.client.driver import ClientDriver, wall_ms
from qim.client.local_store import Outgoing
from qim.client.repeated import settled_before
from qim.client.results import GroupResult, NotConnected, SendFailed, StillPending, state_text
from qim.client.waiting import Waiting, until_kept
from qim.core.client.vocabulary import (
    ClientConfig,
    GroupChangeRequested,
    MembersArrived,
    MembersRequested,
    StateChanged,
)
from qim.core.contract.entities import MembershipOp
from qim.core.contract.ids import group_conversation_id


class GroupCalls(ABC):
    """Methods of ``Client``; from its event loop only.

    A change names ``client_message_id`` where the caller wants to give it again: it is done once, and a repeat is answered
    like the first. Each raises SendFailed (refused for good), StillPending (a TimeoutError: kept, and done later), and
    NotConnected where no connection can be had (kept all the same, unless the text says otherwise).
    """

    config: ClientConfig
    _waiting: Waiting
    _state: StateChanged

    @abstractmethod
    def _alive(self) -> ClientDriver:
        """The driver. Raises NotConnected after the end."""

    @abstractmethod
    def _stopped(self) -> bool:
        """Does the connection wait for the user."""

    async def create_group(
        self,
        members: Iterable[int],
        name: str = "",
        meta: bytes = b"",
        *,
        client_message_id: bytes | None = None,
        timeout: float = 15.0,
    ) -> GroupResult:
        """A new group of this user, its creator, and ``members``."""
        request = GroupChangeRequested(
            client_message_id=_key(client_message_id),
            operation=MembershipOp.CREATE,
            conversation_id=None,
            members=given.users("members", members),
            name=given.text("name", name),
            meta=given.octets("meta", meta),
            wall=wall_ms(),
        )
        return await self._change(request, timeout)

    async def add_members(
        self,
        conversation_id: bytes,
        members: Iterable[int],
        *,
        client_message_id: bytes | None = None,
        timeout: float = 15.0,
    ) -> GroupResult:
        """Add users; those already in are left as they are."""
        return await self._members(
            MembershipOp.ADD, conversation_id, members, client_message_id, timeout
        )

    async def remove_members(
        self,
        conversation_id: bytes,
        members: Iterable[int],
        *,
        client_message_id: bytes | None = None,
        timeout: float = 15.0,
    ) -> GroupResult:
        """Remove users; those not in are passed over."""
        return await self._members(
            MembershipOp.REMOVE, conversation_id, members, client_message_id, timeout
        )

    async def leave(
        self,
        conversation_id: bytes,
        *,
        client_message_id: bytes | None = None,
        timeout: float = 15.0,
    ) -> GroupResult:
        """Leave a group; what was visible until then stays readable."""
        return await self._members(
            MembershipOp.LEAVE, conversation_id, (), client_message_id, timeout
        )

    async def members(
        self, conversation_id: bytes, *, since_version: int = 0, timeout: float = 15.0
    ) -> MembersArrived:
        """Who is in a group. Raises SendFailed with the server's code (UNAVAILABLE: not connected now), TimeoutError."""
        driver = self._alive()
        with self._waiting.ticket() as (ticket, future):
            driver.post(
                MembersRequested(
                    ticket=ticket,
                    conversation_id=given.octets("conversation_id", conversation_id),
                    since_version=given.whole("since_version", since_version),
                )
            )
            async with asyncio.timeout(timeout):
                answer = await future
        assert isinstance(answer, MembersArrived)
        return answer

    async def _members(
        self,
        operation: MembershipOp,
        conversation_id: bytes,
        members: Iterable[int],
        client_message_id: bytes | None,
        timeout: float,
    ) -> GroupResult:
        request = GroupChangeRequested(
            client_message_id=_key(client_message_id),
            operation=operation,
            conversation_id=given.octets("conversation_id", conversation_id),
            members=given.users("members", members),
            wall=wall_ms(),
        )
        return await self._change(request, timeout)

    async def _change(self, request: GroupChangeRequested, timeout: float) -> GroupResult:
        key = request.client_message_id
        known = await settled_before(self._alive(), self.config, request)
        if known is not None:
            return _repeated(known, request, self.config)
        with self._waiting.group(key) as (queued, settled):
            self._alive().post(request)
            await until_kept(queued)
            if self._stopped() and not settled.done():
                raise NotConnected(_kept(state_text(self._state), key), refused=True)
            try:
                async with asyncio.timeout(timeout):
                    return await settled
            except TimeoutError:
                told = f"not settled after {timeout:g} s: {state_text(self._state)}"
                raise StillPending(key, told) from None
            except NotConnected as error:
                raise NotConnected(_kept(str(error), key), refused=error.refused) from None


def _key(client_message_id: bytes | None) -> bytes:
    return given.octets_or_none("client_message_id", client_message_id) or os.urandom(16)


def _repeated(known: Outgoing, request: GroupChangeRequested, config: ClientConfig) -> GroupResult:
    """A change that was settled before; version and control_seq are not kept."""
    if known.code:
        raise SendFailed(known.code)
    group = request.conversation_id or group_conversation_id(
        config.tenant_id, config.user_id, request.client_message_id
    )
    return GroupResult(conversation_id=group, version=0, control_seq=0, noop=False)


def _kept(why: str, key: bytes) -> str:
    return f"{why}; the change is kept here as {key.hex()} and sent at the next connection"
