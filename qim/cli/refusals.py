"""Why a server's data can't be opened: every expected refusal of a start, each with a text that says what to do."""

from typing import Final

from qim.adapters.embedded.data_directory import DataDirectoryDamaged, DataDirectoryHeld
from qim.adapters.embedded.private_valkey import PrivateValkeyFailed
from qim.adapters.embedded.server_binary import NoServerBinary
from qim.adapters.embedded.sqlite_registry import SharedNumbersDiffer
from qim.adapters.embedded.stale_server import StaleServerRemains
from qim.adapters.redis.first_exchange import HandshakeRefused
from qim.adapters.redis.scripts import ScriptsMissing
from qim.adapters.start_refused import StartRefused
from qim.core.contract.params import ParametersInvalid
from qim.services.up import NotReady

REFUSALS: Final[tuple[type[Exception], ...]] = (
    DataDirectoryHeld,
    DataDirectoryDamaged,
    HandshakeRefused,
    NoServerBinary,
    NotReady,
    OSError,
    ParametersInvalid,
    PrivateValkeyFailed,
    ScriptsMissing,
    SharedNumbersDiffer,
    StaleServerRemains,
    StartRefused,
)
