"""A request that is given again under its client_message_id: answered from the row that is settled here (contract.md, Words).

It is not sent again: its not_after is unchanged in retries, and with a later one the server, which forgets keys some hours after
their not_after, would commit it a second time.
"""

from msgspec.structs import replace

from qim.client.driver import ClientDriver
from qim.client.local_store import LocalStore, Outgoing
from qim.client.results import SendFailed
from qim.core.client.outbox import outbox_row
from qim.core.client.translation import Submitted, refusal_of_row, row_of_command
from qim.core.client.vocabulary import ClientConfig
from qim.core.contract.errors import ErrorCode
from qim.core.ports.local_store import PendingMessage, PendingRow


async def settled_before(
    driver: ClientDriver, config: ClientConfig, request: Submitted
) -> Outgoing | None:
    """What became of the same request; None: it is new, pending, or no request at all. Raises SendFailed
    IDEMPOTENCY_CONFLICT where the key was used for another."""
    key = request.client_message_id
    found: tuple[PendingRow, Outgoing] | None = await driver.on_store_thread(
        lambda store: LocalStore.settled_row(store, key)
    )
    row = row_of_command(request, order=0)
    if found is None or refusal_of_row(row) is not None:
        return None
    if _said(found[0], config) != _said(row, config):
        raise SendFailed(
            ErrorCode.IDEMPOTENCY_CONFLICT, f"{key.hex()} was used here for another request"
        )
    return found[1]


def _said(row: PendingRow, config: ClientConfig) -> PendingRow:
    """The row without what no request says, and a conversation by one name."""
    named = outbox_row(row, config.tenant_id, config.user_id).conversation_id
    bare: PendingRow = replace(row, order=0, created_at=0, not_after=0)
    if isinstance(bare, PendingMessage):
        bare = replace(bare, conversation_id=named, peer_user_id=None)
    return bare
