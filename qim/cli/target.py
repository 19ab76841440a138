"""Which server a client command speaks to, as whom, and with which local store."""

import argparse
import asyncio
import base64
import binascii
import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from qim.cli.arguments import (
    SECRET_VARIABLE,
    TOKEN_VARIABLE,
    UsageError,
    access_token,
    default_data,
    device_name,
    seconds,
    server,
    tenant_name,
    user_id,
)
from qim.cli.data_files import running_server, secret_of
from qim.cli.output import say
from qim.client import Client, ClientTls, LocalStoreBusy, client_tls_from_environment
from qim.core.contract.ids import DEFAULT_TENANT_ID, tenant_id_is_valid
from qim.core.contract.params import DAY_MS
from qim.core.contract.tokens import AccessToken, sign_token

DEFAULT_DEVICE: Final = "cli"
DEFAULT_TIMEOUT_SECONDS: Final = 15.0
OWN_TOKEN_MS: Final = 30 * DAY_MS
STORE_LOOK_SECONDS: Final = 0.05
NAME_BYTES_MAX: Final = 200


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """``address``: host:port. ``store``: the device's own file. ``timeout``: seconds for one answer."""

    address: str
    token: str
    user_id: int
    device_id: bytes
    tenant_id: str
    store: Path
    timeout: float
    tls: ClientTls | None = None

    def __repr__(self) -> str:
        return f"Target({self.user_id} at {self.address})"  # never the token


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """--server, --token, --data, --tenant, --timeout: for every command that speaks to a server."""
    group = parser.add_argument_group("which server, as whom")
    group.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="data directory of an embedded server: signs a token for itself, finds the address "
        "(default: $QIM_DATA or .qim/data, where neither --server nor --token is given)",
    )
    group.add_argument("--server", type=server, metavar="HOST:PORT", help="where to connect")
    group.add_argument(
        "--token",
        type=access_token,
        metavar="TOKEN",
        help=f"access token (default: ${TOKEN_VARIABLE}, which other users can't see in a process list; "
        f"else one signed with a cluster's ${SECRET_VARIABLE})",
    )
    group.add_argument("--tenant", type=tenant_name, help=f"tenant (default: {DEFAULT_TENANT_ID})")
    group.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"how long to wait for an answer (default: {DEFAULT_TIMEOUT_SECONDS:g})",
    )


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """The above and --user, --device: for every command that is one device of one user."""
    parser.add_argument("--user", type=user_id, metavar="ID", help="who you are")
    parser.add_argument(
        "--device",
        type=device_name,
        metavar="NAME",
        help=f"which of the user's devices this is; each has a local store of its own (default: {DEFAULT_DEVICE})",
    )
    add_server_arguments(parser)


def target_of(args: argparse.Namespace) -> Target:
    """From the parsed arguments. Raises UsageError, NotRunning."""
    secret = cluster_secret(args)
    data, token = (None, None) if secret else data_and_token(args)
    claims = None if token is None else token_claims(token)
    if claims is not None:
        _agree(args, claims)
    user = args.user or (claims.user_id if claims else None)
    if user is None:
        raise UsageError("--user ID is needed: who sends, pulls, asks")
    device_id = args.device.encode() if args.device else claims.device_id if claims else None
    device_id = device_id or DEFAULT_DEVICE.encode()
    tenant_id = tenant_of(args, claims)
    address = args.server or running_server(_needed(data)).tcp
    return Target(
        address=address,
        token=token or own_token(secret or secret_of(_needed(data)), tenant_id, user, device_id),
        user_id=user,
        device_id=device_id,
        tenant_id=tenant_id,
        store=store_path(data, address, tenant_id, user, device_id),
        timeout=args.timeout,
        tls=tls_of(args),
    )


def tls_of(args: argparse.Namespace) -> ClientTls | None:
    """As $QIM_TLS_CA says for a named server; an embedded one beside its data speaks plaintext. Raises ClientTlsUnusable."""
    return client_tls_from_environment(os.environ) if args.server else None


def cluster_secret(args: argparse.Namespace) -> bytes:
    """$QIM_AUTH_SECRET where a server is named and nothing else says who we are; as smoke and load take it."""
    said = args.token or args.data or os.environ.get(TOKEN_VARIABLE)
    return os.environ.get(SECRET_VARIABLE, "").encode() if args.server and not said else b""


def data_and_token(args: argparse.Namespace) -> tuple[Path | None, str | None]:
    """What names the server and what says who we are. Raises UsageError where a remote server has no token."""
    token = args.token or (None if args.data else token_of_environment())
    data = args.data
    if data is None and token is None and args.server is None:
        data = default_data()
    if data is None and args.server is None:
        raise UsageError("--token needs --server HOST:PORT, or --data DIR")
    if data is None and token is None:
        raise UsageError(
            f"--server needs --token TOKEN (or ${TOKEN_VARIABLE}), ${SECRET_VARIABLE} of a cluster, "
            "or --data DIR beside an embedded server"
        )
    return data, token


def token_of_environment() -> str | None:
    """$QIM_TOKEN; an empty one is none, as of every variable. Raises UsageError."""
    told = os.environ.get(TOKEN_VARIABLE)
    try:
        return access_token(told) if told else None
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"${TOKEN_VARIABLE}: {error}") from None


def tenant_of(args: argparse.Namespace, claims: AccessToken | None) -> str:
    """--tenant, the token's, or the default one. Raises UsageError."""
    if args.tenant is not None:
        return str(args.tenant)
    found = claims.tenant_id if claims else DEFAULT_TENANT_ID
    if not tenant_id_is_valid(found):
        raise UsageError(f"the token is of tenant {found!r}, which none can be")
    return found


def own_token(secret: bytes, tenant: str, user: int, device: bytes | None) -> str:
    """Where the server's secret is at hand: signed here, for this command."""
    claims = AccessToken(
        tenant_id=tenant,
        user_id=user,
        device_id=device,
        expires_at=time.time_ns() // 1_000_000 + OWN_TOKEN_MS,
    )
    return sign_token(claims, secret)


def token_claims(token: str) -> AccessToken | None:
    """What a token of ours says, not verified (the server does that); None where it is of another kind."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.msgpack.decode(payload, type=AccessToken)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None


def store_path(data: Path | None, address: str, tenant: str, user: int, device: bytes) -> Path:
    """clients/<tenant>-<user>-<device>.db in the data directory; without one under ~/.local/share/qim, a server apart."""
    if data is not None:
        folder = data / "clients"
    else:
        home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        folder = Path(home).expanduser() / "qim" / "clients" / _file_name(address)
    name = f"{_file_name(tenant)}-{user}-{_file_name(device)}"
    if len(name) > NAME_BYTES_MAX:
        name = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return folder / f"{name}.db"


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Client]:
    """The client of ``target``, once no other command uses its store. Raises LocalStoreBusy after the time-out."""
    client = Client(
        user_id=target.user_id,
        access_token=target.token,
        addresses=(target.address,),
        store_path=target.store,
        device_id=target.device_id,
        tenant_id=target.tenant_id,
        tls=target.tls,
    )
    deadline = time.monotonic() + target.timeout
    told = False
    while True:
        try:
            await client.__aenter__()
            break
        except LocalStoreBusy as busy:
            if time.monotonic() > deadline:
                raise
            if not told:
                told = True
                say(f"waiting: {busy}")
            await asyncio.sleep(STORE_LOOK_SECONDS)
    try:
        yield client
    finally:
        await client.close()


def _file_name(part: str | bytes) -> str:
    # '-' separates the parts, so it may not stand inside one
    return quote(part, safe="").replace("-", "%2D").replace(".", "%2E")


def _needed(data: Path | None) -> Path:
    if data is None:
        raise UsageError("--server HOST:PORT or --data DIR is needed")
    return data


def _agree(args: argparse.Namespace, claims: AccessToken) -> None:
    """A token speaks for one user; a command that names another one can only be refused."""
    if args.user not in (None, claims.user_id):
        raise UsageError(f"the token is user {claims.user_id}'s, --user says {args.user}")
    if args.tenant not in (None, claims.tenant_id):
        raise UsageError(f"the token is of tenant {claims.tenant_id}, --tenant says {args.tenant}")
    if claims.device_id is not None and args.device not in (
        None,
        claims.device_id.decode("utf-8", "replace"),
    ):
        raise UsageError("the token is bound to another device than --device says")
