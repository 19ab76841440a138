"""Every error a peer can be told: one number, one meaning, and whether the same request may help again.

Source: contract.md, Frames. Numbers are on the wire: never renumber, only append.
"""

from enum import IntEnum

import msgspec


class ErrorCode(IntEnum):
    """The `code` of an ERROR frame."""

    MALFORMED_FRAME = 1
    FRAME_TOO_LARGE = 2
    UNSUPPORTED = 3
    UNAUTHENTICATED = 4
    TOKEN_EXPIRED = 5
    FORBIDDEN = 6
    NOT_MEMBER = 7
    INVALID_ARGUMENT = 8
    IDEMPOTENCY_CONFLICT = 9
    SEND_EXPIRED = 10
    MEMBERSHIP_CHANGED = 11
    CURSOR_INVALID = 12
    CURSOR_EXPIRED = 13
    CURSOR_REBASED = 14
    RATE_LIMITED = 15
    QUOTA_EXCEEDED = 16
    MODERATION_REJECTED = 17
    TOO_MANY_MEMBERS = 18
    NOT_FOUND = 19
    NOT_OWNER = 20
    UNAVAILABLE = 21
    TIMEOUT_UNKNOWN = 22
    INTERNAL = 23


class ErrorMeaning(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """meaning: one sentence for people; retry: repeating the SAME request (same client_message_id) can help;
    closes: the bytes that follow can't be trusted, so the connection ends after this one ERROR."""

    meaning: str
    retry: bool = False
    closes: bool = False


ERROR_MEANINGS: dict[ErrorCode, ErrorMeaning] = {
    ErrorCode.MALFORMED_FRAME: ErrorMeaning(
        meaning="the bytes are no frame of this protocol", closes=True
    ),
    ErrorCode.FRAME_TOO_LARGE: ErrorMeaning(
        meaning="the frame is longer than this connection allows", closes=True
    ),
    ErrorCode.UNSUPPORTED: ErrorMeaning(meaning="an opcode or flag this server does not speak"),
    ErrorCode.UNAUTHENTICATED: ErrorMeaning(meaning="no valid access token came before this frame"),
    ErrorCode.TOKEN_EXPIRED: ErrorMeaning(
        meaning="the access token was valid once; get a new one and AUTH again"
    ),
    ErrorCode.FORBIDDEN: ErrorMeaning(meaning="the user may not do this"),
    ErrorCode.NOT_MEMBER: ErrorMeaning(meaning="the user is not a member of the conversation"),
    ErrorCode.INVALID_ARGUMENT: ErrorMeaning(meaning="a field is outside its bounds"),
    ErrorCode.IDEMPOTENCY_CONFLICT: ErrorMeaning(
        meaning="this client_message_id was used for another request"
    ),
    ErrorCode.SEND_EXPIRED: ErrorMeaning(
        meaning="not_after has passed and no commit of this request is known"
    ),
    ErrorCode.MEMBERSHIP_CHANGED: ErrorMeaning(
        meaning="members kept changing through every re-freeze", retry=True
    ),
    ErrorCode.CURSOR_INVALID: ErrorMeaning(
        meaning="the cursor is forged, foreign or beyond the log; REBUILD"
    ),
    ErrorCode.CURSOR_EXPIRED: ErrorMeaning(
        meaning="the cursor is older than the mailbox keeps; REBUILD"
    ),
    ErrorCode.CURSOR_REBASED: ErrorMeaning(
        meaning="the shard started a new epoch since this cursor; REBUILD"
    ),
    ErrorCode.RATE_LIMITED: ErrorMeaning(meaning="too fast; wait retry_after_ms", retry=True),
    ErrorCode.QUOTA_EXCEEDED: ErrorMeaning(meaning="the tenant's quota is used up"),
    ErrorCode.MODERATION_REJECTED: ErrorMeaning(
        meaning="the before-send check refused the message"
    ),
    ErrorCode.TOO_MANY_MEMBERS: ErrorMeaning(meaning="the group would exceed its size limit"),
    ErrorCode.NOT_FOUND: ErrorMeaning(
        meaning="there is no such thing, or it is not visible to the user"
    ),
    ErrorCode.NOT_OWNER: ErrorMeaning(
        meaning="another instance owns the shard; ask that one", retry=True
    ),
    ErrorCode.UNAVAILABLE: ErrorMeaning(meaning="surely not done, may work later", retry=True),
    ErrorCode.TIMEOUT_UNKNOWN: ErrorMeaning(
        meaning="may have been done or not; repeat with the same client_message_id", retry=True
    ),
    ErrorCode.INTERNAL: ErrorMeaning(meaning="the server is at fault and says no more"),
}


class ProtocolError(Exception):
    """A peer's or user's fault with its code; the only exception that decoding anything of theirs may raise.

    request and stream are those of the frame at fault (0 where none could be read), client_message_id its own where
    it could be read, so that the ERROR that answers reaches the right request.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        stream: int = 0,
        request: int = 0,
        client_message_id: bytes | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.stream = stream
        self.request = request
        self.client_message_id = client_message_id

    @property
    def closes(self) -> bool:
        """True where the connection must end after the ERROR."""
        return ERROR_MEANINGS[self.code].closes

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"
