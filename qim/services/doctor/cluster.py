"""A cluster, from its configuration alone: servers, shared parameters, clocks, leases, lags, processes, certificates."""

import asyncio
import socket
import ssl
import time
from asyncio import AbstractEventLoop
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from qim.adapters.reporting import SILENT
from qim.adapters.start_refused import StartRefused
from qim.adapters.wall_clock import wall_ms
from qim.core.ports.log import Topic
from qim.services.cluster.adapters import Opened, Told, open_adapters, open_archive
from qim.services.cluster.shared import shared_numbers
from qim.services.doctor import processes, shards
from qim.services.doctor.findings import Finding, fail, ok, refused, warn
from qim.services.doctor.halted import halted
from qim.services.hosting import Deployment
from qim.services.mending import Mender
from qim.services.roles import ServiceRole
from qim.services.settings import Settings, check_settings
from qim.services.settings.values import show_address

CONNECT_SECONDS_MAX: Final = 5.0
CERTIFICATES: Final = (
    "tls_cert",
    "internal_tls_cert",
    "internal_tls_client_ca",
    "internal_tls_server_ca",
)
MADE_ANEW: Final = {
    Topic.DISPATCH: "qim shard bump",
    Topic.OUTBOX: "qim repair outbox",
    Topic.USER_STATE: "qim repair states",
}
_LOOKS_AT: Final = {
    ServiceRole.AUDITOR: "redis, kafka and etcd",
    ServiceRole.ARCHIVER: "the archive",
}


async def examined(
    settings: Settings, named: Mapping[str, Sequence[str]], *, deep: bool
) -> list[Finding]:
    """``named``: metrics addresses by role, where they are not those of the configuration."""
    found = [*_configuration(settings)]
    tiered = settings.message_store_backend == "tiered"
    found += await _servers(settings, deep=deep, tiered=tiered)
    loop = asyncio.get_running_loop()
    for role in _roles(settings):
        found += await _process(settings, role, named.get(role.value, ()), loop)
    found += await loop.run_in_executor(None, lambda: [*_certificates(settings)])
    found += await loop.run_in_executor(None, lambda: [*_gateway(settings)])
    return found


def _roles(settings: Settings) -> list[ServiceRole]:
    """Those this deployment has: without an archive nobody archives."""
    tiered = settings.message_store_backend == "tiered"
    return [role for role in ServiceRole if tiered or role is not ServiceRole.ARCHIVER]


def _configuration(settings: Settings) -> Iterator[Finding]:
    told: dict[str, Finding] = {}
    for role in _roles(settings):
        for fault in check_settings(settings, role):
            same = str(fault).replace(f" for {role}", "")
            told.setdefault(same, refused(f"configuration of {role}", fault))
    yield from told.values() or [ok("configuration", "no fault for any role")]


async def _servers(settings: Settings, *, deep: bool, tiered: bool) -> list[Finding]:
    found: list[Finding] = []
    roles = [ServiceRole.AUDITOR, *([ServiceRole.ARCHIVER] if tiered else [])]
    for role in roles:
        if any(check_settings(settings, role)):
            do = "mend the configuration first: qim config check"
            found.append(fail(f"start-up checks ({_LOOKS_AT[role]})", "not looked at", do))
            continue
        try:
            opened = await _opened(settings, role)
        except StartRefused as error:
            found.append(refused(f"start-up checks ({_LOOKS_AT[role]})", error))
            continue
        try:
            found.append(ok(f"start-up checks ({_LOOKS_AT[role]})", "nothing to refuse"))
            found += [warn("start-up checks", one, "not for production") for one in opened.warnings]
            found += [warn("start-up checks", what, do) for what, do in opened.advice]
            if role is ServiceRole.AUDITOR:
                found += await _shared(settings, opened)
                found += await _clocks(settings, opened)
                parameters = settings.parameters()
                mender = Mender(opened.ports, parameters, tiered=tiered)
                found += await shards.leases(mender, parameters, tiered=tiered)
                found += await shards.lags(mender, parameters, tiered=tiered)
                found += await halted(mender)
                if deep:
                    found += await _wholeness(settings, opened, mender, tiered=tiered)
        finally:
            await opened.close()
    return found


async def _wholeness(
    settings: Settings, opened: Opened, mender: Mender, *, tiered: bool
) -> list[Finding]:
    """How far an outbox reached is the archive's to say too; why it can't be opened is told where it is looked at."""
    if tiered:
        loop = asyncio.get_running_loop()
        try:
            opened.ports.archive = await open_archive(settings, loop, opened)
        except StartRefused:
            do = "mend the archive first"
            return [fail("positions against their logs (--deep)", "not looked at", do, "archive")]
    return await shards.wholeness(mender)


async def _opened(settings: Settings, role: ServiceRole) -> Opened:
    """Of the archiver what the auditor has not: a server that is away is waited for, and told, once."""
    loop = asyncio.get_running_loop()
    if role is not ServiceRole.ARCHIVER:
        told = Told(reporting=SILENT, on_reset=lambda _: None)
        return await open_adapters(settings, role, loop, told)
    opened = Opened()
    try:
        await open_archive(settings, loop, opened)
    except BaseException:
        await opened.close()
        raise
    return opened


async def _shared(settings: Settings, opened: Opened) -> list[Finding]:
    """As a start compares them, and without writing them where nobody has yet."""
    stored = await opened.registry.read_shared()
    if not stored:
        return [ok("shared parameters", "no process has fixed them yet: the first start does")]
    deployment = Deployment(parameters=settings.parameters(), retention=settings.retention())
    ours = shared_numbers(deployment)
    ours |= {f"topic_id_{topic}": one.hex() for topic, one in opened.topic_ids.items()}
    found: list[Finding] = []
    for name, value in ours.items():
        held = stored.get(name, value)
        if held != value and name.startswith("topic_id_"):
            do = f"{MADE_ANEW[Topic(name.removeprefix('topic_id_'))]}: the topic was made anew"
            found.append(
                fail(f"shared {name}", f"{value}, fixed as {held}", do, "position-mismatch")
            )
        elif held != value:
            found.append(fail(f"shared {name}", f"{value}, fixed as {held}", f"configure {held}"))
    return found or [ok("shared parameters", f"{len(ours)} agree with the registry's")]


async def _clocks(settings: Settings, opened: Opened) -> list[Finding]:
    try:
        ahead = await opened.registry.check_clock(
            wall_ms(), settings.parameters().clock_ahead_max_ms
        )
    except StartRefused as error:
        return [refused("clock of etcd", error, "clock")]
    if ahead is None:
        return [ok("clock of etcd", "it doesn't tell")]
    return [*processes.clock("etcd", -ahead / 1000)] or [
        ok("clock of etcd", f"ours is {ahead} ms ahead")
    ]


async def _process(
    settings: Settings, role: ServiceRole, named: Sequence[str], loop: AbstractEventLoop
) -> list[Finding]:
    """An auditor is started when somebody wants an audit: none is no fault."""
    addresses = named or (show_address(settings.metrics(role)),)
    found: list[Finding] = []
    for address in addresses:
        told = await loop.run_in_executor(None, partial(_told, role.value, address))
        silent = role is ServiceRole.AUDITOR and not named and told and told[0].state == "fail"
        if not (silent and told[0].found.startswith("no answer")):
            found += told
    return found


def _told(role: str, address: str) -> list[Finding]:
    return [*processes.examined(role, address)]


def _certificates(settings: Settings) -> Iterator[Finding]:
    """The files as they are now, which is what SIGHUP would load."""
    for name in CERTIFICATES:
        path = getattr(settings, name)
        if path is None:
            continue
        from qim.adapters.tls.pair import read_certificates

        subject = f"QIM_{name.upper()} {path}"
        try:
            for one in read_certificates(Path(path), f"QIM_{name.upper()}"):
                left = (one.not_valid_after_utc - datetime.now(UTC)).total_seconds()
                yield from processes.certificate(subject, left)
        except StartRefused as error:
            yield refused(subject, error, "certificates")


def _gateway(settings: Settings) -> Iterator[Finding]:
    """What a client meets: a connection, and the certificate that is really served."""
    host, port = settings.gateway_listen
    subject = f"gateway at {show_address(settings.gateway_listen)}"
    began = time.perf_counter()
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS_MAX) as connection:
            took = (time.perf_counter() - began) * 1000
            yield ok(subject, f"takes connections ({took:.1f} ms)")
            if settings.tls_cert is not None:
                yield from _served(subject, connection, host)
    except OSError as error:
        yield fail(subject, str(error), "start a gateway: qim serve gateway", "shards-not-serving")


def _served(subject: str, connection: socket.socket, host: str) -> Iterator[Finding]:
    from cryptography import x509

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is looked at, nothing is said to it
    context.set_alpn_protocols(["qim/1"])
    try:
        with context.wrap_socket(connection, server_hostname=host) as wrapped:
            data = wrapped.getpeercert(binary_form=True)
    except OSError as error:
        yield fail(subject, f"no TLS: {error}", "read the gateway's log", "certificates")
        return
    assert data is not None
    leaf = x509.load_der_x509_certificate(data)
    left = (leaf.not_valid_after_utc - datetime.now(UTC)).total_seconds()
    yield from processes.certificate(f"{subject}, its certificate", left)
