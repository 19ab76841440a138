"""Frames in, answers out: admission, the legality table, questions with the actor injected, answers by rid.

    bytes ──► frames ──L1──► table ──► question ──rid──► …answer──► frame with the request id it answers

Cheap refusals come first: nothing is decoded before the bucket has a token, nothing is asked before the table allows
it. One bad frame refuses itself; only bytes that can't be trusted any more end the connection.
"""

from typing import assert_never, cast

import msgspec
from msgspec.structs import replace

from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import (
    Auth,
    ClientFrame,
    CreateGroup,
    GroupAdd,
    GroupRemove,
    LeaveGroup,
    MarkRead,
    Members,
    Ping,
    PullHistory,
    PullMailbox,
    PullSessionList,
    ReadBy,
    SetState,
    StateSync,
    SyncComplete,
    WireFrame,
    decode_client_frame,
)
from qim.core.contract.rpc import (
    AskHistory,
    GroupDone,
    HistoryAnswer,
    MembersAnswer,
    PullAnswer,
    SendDone,
)
from qim.core.contract.rpc_session import (
    AskSessionList,
    ReadByAnswer,
    SessionListAnswer,
    StateDone,
    StatesAnswer,
)
from qim.core.contract.wire import FramingError, RawFrame
from qim.core.gateway import answers
from qim.core.gateway.auth import Authentication
from qim.core.gateway.connection import Connection
from qim.core.gateway.connections import Connections
from qim.core.gateway.context import NodeContext
from qim.core.gateway.questions import (
    Batch,
    Query,
    Question,
    Submission,
    conversation_of,
    query,
    submission,
    trace_of,
    writer_of,
)
from qim.core.gateway.requests import Asked, AskKind, Failure, Requests
from qim.core.gateway.table import TABLE, Action, ConnectionState, refusal
from qim.core.gateway.watermarks import Watermarks
from qim.core.ports.registry import Resource

Answer = (
    SendDone
    | GroupDone
    | PullAnswer
    | HistoryAnswer
    | MembersAnswer
    | SessionListAnswer
    | answers.SessionAnswer
)

_KINDS: dict[type, AskKind] = {
    SendDone: AskKind.SEND,
    GroupDone: AskKind.GROUP,
    PullAnswer: AskKind.PULL,
    HistoryAnswer: AskKind.HISTORY,
    MembersAnswer: AskKind.MEMBERS,
    SessionListAnswer: AskKind.SESSIONS,
    StateDone: AskKind.STATE,
    StatesAnswer: AskKind.STATES,
    ReadByAnswer: AskKind.READ_BY,
}
_QUERY_KINDS: dict[type, AskKind] = {
    PullMailbox: AskKind.PULL,
    PullHistory: AskKind.HISTORY,
    Members: AskKind.MEMBERS,
    PullSessionList: AskKind.SESSIONS,
    MarkRead: AskKind.STATE,
    SetState: AskKind.STATE,
    StateSync: AskKind.STATES,
    ReadBy: AskKind.READ_BY,
}
_BATCHES = (AskKind.PULL, AskKind.HISTORY, AskKind.SESSIONS, AskKind.STATES)
_GROUP_FRAMES = (CreateGroup, GroupAdd, GroupRemove, LeaveGroup)


class Reading:
    """What clients ask and what they are answered. It keeps no state of its own."""

    def __init__(
        self,
        context: NodeContext,
        connections: Connections,
        requests: Requests,
        authentication: Authentication,
        watermarks: Watermarks,
    ) -> None:
        self._context = context
        self._connections = connections
        self._requests = requests
        self._authentication = authentication
        self._watermarks = watermarks

    def read(self, connection: Connection, data: bytes) -> None:
        """A chunk of bytes: each whole frame in it in order, until one ends the connection."""
        lost: FramingError | None = None
        try:
            frames = connection.decoder.feed(data)
        except FramingError as error:
            frames, lost = list(error.frames), error
        for raw in frames:
            if connection.state is ConnectionState.CLOSING:
                return
            self._take(connection, raw)
        if lost is not None:
            self._connections.refuse(connection, lost)

    def answered(self, answer: Answer) -> None:
        """An answer of a service goes to the request it names, if that still waits."""
        asked = self._requests.answered(answer.rid, _KINDS[type(answer)])
        if asked is not None:
            self.taken(asked, answer)

    def taken(self, asked: Asked, answer: Answer) -> None:
        """``answered``, where the request was found already."""
        connection = self._finish(asked)
        if connection is None:
            return
        if isinstance(answer, SessionListAnswer) and self._asked_for_less(
            asked, connection, answer
        ):
            return
        if isinstance(answer, PullAnswer) and answer.entries:
            asked.trace = answer.entries[0].trace_id
        frame = self._frame(asked, connection, answer)
        if frame is not None:
            self._connections.send(
                connection,
                frame,
                request=asked.request,
                batch=asked.kind in _BATCHES,
                trace=asked.trace,
            )
        self.wake(connection)

    def failed(self, failure: Failure) -> None:
        """A request that ended without its answer: its ERROR carries the same request id."""
        asked = failure.asked
        connection = self._finish(asked)
        if connection is None:
            return
        self._connections.tell(
            connection,
            failure.code,
            failure.message,
            request=asked.request,
            stream=asked.stream,
            retry_after_ms=failure.retry_after_ms,
            client_message_id=asked.client_message_id,
        )
        self.wake(connection)

    def wake(self, connection: Connection) -> None:
        """There may be room again: batches held back are asked for now."""
        while connection.held and connection.out.has_room_for_batch(connection.inflight_batches):
            frame, request, stream = connection.held.popleft()
            self._ask_query(connection, frame, request, stream)

    # ---------------------------------------------------------------- frames

    def _take(self, connection: Connection, raw: RawFrame) -> None:
        config = self._context.config
        wait_ms = connection.admit(
            self._context.now, config.admission_per_second, config.admission_burst
        )
        if wait_ms:
            self._connections.tell(
                connection,
                ErrorCode.RATE_LIMITED,
                "too many frames",
                request=raw.request,
                stream=raw.stream,
                retry_after_ms=wait_ms,
            )
            return
        try:
            frame = decode_client_frame(raw)
            self._act(connection, frame, raw)
        except ProtocolError as error:
            error.request, error.stream = raw.request, raw.stream
            self._connections.refuse(connection, error)

    def _act(self, connection: Connection, frame: ClientFrame, raw: RawFrame) -> None:
        """Do what the table says. Raises ProtocolError for a refusal that ends only this request."""
        action = TABLE[connection.state][type(frame)]
        match action:
            case Action.SUBMIT:
                self._submit(connection, cast(Submission, frame), raw)
            case Action.BATCH:
                self._batch(connection, cast(Batch, frame), raw)
            case Action.QUERY:
                self._admit_request(connection)
                self._ask_query(connection, cast(Query, frame), raw.request, raw.stream)
            case Action.PONG:
                self._watermarks.ping(connection, cast(Ping, frame), raw.request)
            case Action.AUTHENTICATE:
                self._authentication.authenticate(connection, cast(Auth, frame), raw.request)
            case Action.COMPLETE_SYNC:
                self._complete_sync(connection, cast(SyncComplete, frame), raw.request)
            case Action.IGNORE:
                pass
            case Action.REFUSE_UNAUTHENTICATED | Action.REFUSE_STATE | Action.REFUSE_UNSUPPORTED:
                raise refusal(action, frame)
            case _:
                assert_never(action)

    def _complete_sync(self, connection: Connection, frame: SyncComplete, request: int) -> None:
        if frame.sync_to_seq < connection.sync_to_seq:
            raise ProtocolError(
                ErrorCode.INVALID_ARGUMENT,
                f"sync_to_seq is {frame.sync_to_seq}, AUTH_OK said {connection.sync_to_seq}",
            )
        self._watermarks.ready(connection, request)

    def _submit(self, connection: Connection, frame: Submission, raw: RawFrame) -> None:
        actor = connection.authenticated()
        conversation_id = conversation_of(frame, actor)
        self._admit_request(connection, frame.client_message_id)
        rid = self._requests.next_rid()
        self._ask(
            connection,
            AskKind.GROUP if isinstance(frame, _GROUP_FRAMES) else AskKind.SEND,
            submission(rid, actor, frame),
            writer_of(conversation_id, self._context.parameters),
            raw.request,
            raw.stream,
            client_message_id=frame.client_message_id,
            trace=trace_of(actor, frame.client_message_id),
        )

    def _batch(self, connection: Connection, frame: Batch, raw: RawFrame) -> None:
        """Batches are asked for only when there is room for their answers; the rest is held, up to the server bound."""
        parameters = self._context.parameters
        if connection.inflight_batches + len(connection.held) >= parameters.pulls_inflight_max:
            raise ProtocolError(ErrorCode.RATE_LIMITED, "too many pulls at once")
        self._admit_request(connection)
        connection.held.append((frame, raw.request, raw.stream))
        self.wake(connection)

    def _admit_request(
        self, connection: Connection, client_message_id: bytes | None = None
    ) -> None:
        if self._context.draining_until is not None:
            code, why = ErrorCode.UNAVAILABLE, "this gateway is stopping"
        elif (
            connection.inflight + len(connection.held)
            >= self._context.config.connection_requests_max
        ):
            code, why = ErrorCode.RATE_LIMITED, "too many requests at once"
        else:
            return
        raise ProtocolError(code, why, client_message_id=client_message_id)

    # ---------------------------------------------------------------- questions

    def _ask_query(self, connection: Connection, frame: Query, request: int, stream: int) -> None:
        rid = self._requests.next_rid()
        question, resource = query(rid, connection.authenticated(), frame, self._context.parameters)
        self._ask(connection, _QUERY_KINDS[type(frame)], question, resource, request, stream)

    def _ask(
        self,
        connection: Connection,
        kind: AskKind,
        question: Question,
        resource: Resource,
        request: int,
        stream: int,
        *,
        client_message_id: bytes | None = None,
        trace: int | None = None,
    ) -> None:
        connection.inflight += 1
        connection.inflight_batches += kind in _BATCHES
        self._requests.ask(
            Asked(
                rid=question.rid,
                first_rid=question.rid,
                kind=kind,
                question=question,
                resource=resource,
                deadline=self._context.now + self._context.config.request_timeout_ms,
                conn=connection.conn,
                request=request,
                stream=stream,
                client_message_id=client_message_id,
                trace=trace,
            )
        )
        self._connections.pause_if_busy(connection)

    def _finish(self, asked: Asked) -> Connection | None:
        """Count the request as ended; None where its connection is gone."""
        connection = self._connections.get(asked.conn)
        if connection is None:
            return None
        connection.inflight -= 1
        connection.inflight_batches -= asked.kind in _BATCHES
        self._connections.resume_if_idle(connection)
        return connection

    def _asked_for_less(
        self, asked: Asked, connection: Connection, answer: SessionListAnswer
    ) -> bool:
        """A page too large for one frame is asked for again with fewer rows: only its owner can make their page key.

        A lost revision was answered by the first page of a new one, so that one begins at its start.
        """
        question = asked.question
        assert isinstance(question, AskSessionList)
        fits = answers.session_rows_that_fit(answer, self._context.parameters.batch_bytes_max)
        if fits >= len(answer.rows):
            return False
        same = question.revision in (0, answer.revision)
        again = replace(
            question,
            rid=self._requests.next_rid(),
            revision=answer.revision,
            after=question.after if same else b"",
            limit=fits,
        )
        self._ask(connection, AskKind.SESSIONS, again, asked.resource, asked.request, asked.stream)
        return True

    def _frame(self, asked: Asked, connection: Connection, answer: Answer) -> WireFrame | None:
        try:
            return self._frame_of(asked, connection, answer)
        except msgspec.DecodeError:
            self._connections.tell(
                connection,
                ErrorCode.INTERNAL,
                "a stored record can't be read",
                request=asked.request,
                stream=asked.stream,
            )
            return None

    def _frame_of(self, asked: Asked, connection: Connection, answer: Answer) -> WireFrame:
        match answer:
            case SendDone():
                return answers.send_ack(answer)
            case PullAnswer():
                connection.seen = max(connection.seen, answer.covered_through_seq)
                return answers.mailbox_batch(answer)
            case GroupDone():
                return answers.group_ok(answer)
            case MembersAnswer():
                return answers.members_batch(answer)
            case HistoryAnswer():
                assert isinstance(asked.question, AskHistory)
                return answers.history_batch(
                    answer,
                    connection.authenticated(),
                    asked.question.direction,
                    asked.question.anchor,
                    self._context.parameters.batch_bytes_max,
                )
            case SessionListAnswer():
                return answers.session_list_batch(answer, connection.authenticated())
            case _:
                return answers.session_frame(asked.question, answer)
