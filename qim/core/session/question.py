"""A question of a gateway: answered once, by an answer, a refusal, or the end of its wait."""

from msgspec import Struct

from qim.core.contract.actor import Actor
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    SubmitRead,
    SubmitState,
)
from qim.core.machine import Ms

Ask = SubmitRead | SubmitState | AskSessionList | AskStates | AskReadBy


class Question(Struct, eq=False):
    """``late``: what the asker is told when its wait ends. TIMEOUT_UNKNOWN from when an append may have been sent."""

    source: str
    ask: Ask
    shard: int
    due: Ms
    late: ErrorCode = ErrorCode.UNAVAILABLE
    answered: bool = False

    @property
    def actor(self) -> Actor:
        """Who asks, as the gateway authenticated it."""
        return self.ask.actor
