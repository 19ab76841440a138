"""What must not start, judged from the settings alone: before any connection is made (issue: start-up checks)."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from qim.adapters.loopback import is_loopback, is_wildcard
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.startup import refuse_unsafe_elsewhere
from qim.adapters.rpc.roles import ProcessRole
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.files import pair_of
from qim.adapters.tls.internal_settings import InternalTlsSettings
from qim.core.contract.params import ParameterFault, ParametersInvalid
from qim.services.roles import ServiceRole
from qim.services.settings.model import DEVELOPMENT_SECRET, VARIABLE_OF, Settings
from qim.services.settings.table import VARIABLES
from qim.services.settings.values import Address, show_address

_SIGNS: Final = frozenset({ServiceRole.GATEWAY, ServiceRole.MAILBOX})
_ARCHIVE_READERS: Final = frozenset({ServiceRole.WRITER, ServiceRole.MAILBOX, ServiceRole.ARCHIVER})
_ARCHIVE: Final = ("scylla_hosts", "scylla_keyspace", "scylla_dc", "scylla_rf")


def check_settings(settings: Settings, role: ServiceRole) -> tuple[StartRefused, ...]:
    """Every reason why a process of this role must not start with these settings (pure)."""
    return (
        *_missing(settings, role),
        *_topics(settings, role),
        *parameter_faults(settings),
        *_stores(settings),
        *_archive(settings, role),
        *_client_tls(settings, role),
        *registry_faults(settings),
        *log_faults(settings),
        *_archive_login(settings),
        *_internal_tls(settings, role),
        *_secret(settings, role),
        *_advertised(settings, role),
        *_hooks(settings),
    )


def require(settings: Settings, role: ServiceRole) -> None:
    """Raises StartRefused with the first reason."""
    for refused in check_settings(settings, role):
        raise refused


def warnings(settings: Settings, role: ServiceRole) -> tuple[str, ...]:
    """What a process starts with all the same, and somebody should know (seed: the default secret is a WARN)."""
    told: list[str] = []
    if role in _SIGNS and settings.auth_secret == DEVELOPMENT_SECRET:
        told.append("the development secret signs tokens and cursors: set QIM_AUTH_SECRET")
    if (
        role is ServiceRole.GATEWAY
        and _serves_plaintext_abroad(settings)
        and settings.gateway_plaintext
    ):
        told.append(
            f"clients are served in plaintext at {show_address(settings.gateway_listen)}: "
            "QIM_GATEWAY_PLAINTEXT says that something in front of it speaks TLS"
        )
    if role is ServiceRole.AUDITOR and not has_internal_tls(settings):
        told.append("it takes no order: admin operations need mTLS, on loopback too")
    elif role is ServiceRole.AUDITOR and not settings.internal_admin_cert_sha256:
        told.append("it takes no order: QIM_INTERNAL_ADMIN_CERT_SHA256 names nobody")
    return tuple(told)


def _serves_plaintext_abroad(settings: Settings) -> bool:
    return settings.tls_cert is None and not is_loopback(settings.gateway_listen[0])


def has_internal_tls(settings: Settings) -> bool:
    """mTLS between processes is set up."""
    return all(settings.internal_tls())


def _missing(settings: Settings, role: ServiceRole) -> Iterator[StartRefused]:
    for variable in VARIABLES:
        if role in variable.needed_by and getattr(settings, variable.key) is None:
            yield StartRefused(
                "config_missing",
                f"{variable.name} for {role}",
                got="not set",
                expected=variable.kind.expected,
                command=f"export {variable.name}=…",
            )


def _topics(settings: Settings, role: ServiceRole) -> Iterator[StartRefused]:
    told = {
        "QIM_OUTBOX_TOPIC": settings.outbox_topic,
        "QIM_DISPATCH_TOPIC": settings.dispatches(role),
        "QIM_USER_STATE_TOPIC": settings.user_state_topic,
    }
    first: dict[str, str] = {}
    for name, topic in told.items():
        if topic is not None and first.setdefault(topic, name) != name:
            yield StartRefused(
                "topics_not_distinct",
                name,
                got=f"{topic!r}, as {first[topic]} is",
                expected="a topic of its own: each log is read as what it is",
                command=f"export {name}=…",
            )


def parameter_faults(settings: Settings) -> Iterator[StartRefused]:
    """Windows out of their legal order, numbers out of their range."""
    try:
        settings.parameters().require_valid()
    except ParametersInvalid as error:
        for fault in error.faults:
            variable = VARIABLE_OF.get(fault.name)
            yield StartRefused(
                "config_parameters",
                f"{variable} ({fault.name})" if variable else f"the parameter {fault.name}",
                got=fault.got,
                expected=fault.expected,
                command=_told_otherwise(fault),
            )


def _told_otherwise(fault: ParameterFault) -> str:
    """The variable to set: of what is at fault, or of what it is measured by where that is nobody's to change."""
    words = re.findall(r"\w+", f"{fault.name} {fault.remedy}")
    variables = [VARIABLE_OF[word] for word in words if word in VARIABLE_OF]
    assert variables, f"nobody told {fault.name}"
    remedy = re.sub(r"\w+", lambda word: VARIABLE_OF.get(word[0], word[0]), fault.remedy)
    return f"export {variables[0]}=…  # {remedy}"


def _stores(settings: Settings) -> Iterator[StartRefused]:
    for name in ("redis_addr", "mailbox_redis_addr"):
        told = getattr(settings, name)
        if told is not None:
            yield from _store(settings, f"QIM_{name.upper()}", told)


def _store(settings: Settings, variable: str, told: str) -> Iterator[StartRefused]:
    try:
        address = StoreAddress.parse(told)
    except StartRefused as refused:
        yield StartRefused(
            refused.code,
            variable,
            got=refused.got,
            expected=refused.expected,
            command=f"export {variable}=127.0.0.1:6379",
        )
        return
    if settings.redis_allow_unsafe_dev:
        yield from _refusal_of(lambda: refuse_unsafe_elsewhere(address))


def _archive(settings: Settings, role: ServiceRole) -> Iterator[StartRefused]:
    tiered = settings.message_store_backend == "tiered"
    if role is ServiceRole.ARCHIVER and not tiered:
        yield StartRefused(
            "archiver_without_archive",
            "QIM_MESSAGE_STORE_BACKEND for archiver",
            got=settings.message_store_backend,
            expected="tiered: there is nothing to archive otherwise",
            command="export QIM_MESSAGE_STORE_BACKEND=tiered",
        )
    if not tiered or role not in _ARCHIVE_READERS:
        return
    absent = [name for name in _ARCHIVE if getattr(settings, name) is None]
    for name in absent:
        variable = f"QIM_{name.upper()}"
        yield StartRefused(
            "config_missing",
            f"{variable} for {role}, as QIM_MESSAGE_STORE_BACKEND is tiered",
            got="not set",
            expected="set with the others of QIM_SCYLLA_*, or QIM_MESSAGE_STORE_BACKEND=redis for development",
            command=f"export {variable}=…",
        )
    if not absent:
        yield from _refusal_of(lambda: _archive_words(settings))


def _archive_words(settings: Settings) -> None:
    """Raises StartRefused, ModuleNotFoundError."""
    from qim.adapters.cassandra.settings import require_strong, settings_from

    require_strong(settings_from(settings.told()))


def _refusal_of(judge: Callable[[], object]) -> Iterator[StartRefused]:
    """What an adapter refuses of its own settings, told by a check already.

    Without the extra `cluster` there is no adapter to ask; `qim serve` says that before anything else.
    """
    try:
        judge()
    except ModuleNotFoundError:
        return
    except StartRefused as refused:
        yield refused


def _client_tls(settings: Settings, role: ServiceRole) -> Iterator[StartRefused]:
    yield from _pair(settings.tls_cert, settings.tls_key, ("QIM_TLS_CERT", "QIM_TLS_KEY"))
    allowed = settings.gateway_plaintext or settings.tls_key is not None
    if role is ServiceRole.GATEWAY and _serves_plaintext_abroad(settings) and not allowed:
        yield StartRefused(
            "clients_plaintext",
            f"the clients' listener {show_address(settings.gateway_listen)}",
            got="reachable from other machines, in plaintext",
            expected="QIM_TLS_CERT and QIM_TLS_KEY, loopback, or something in front of it that speaks TLS",
            command="qim certs dev  # then set QIM_TLS_CERT and QIM_TLS_KEY; or QIM_GATEWAY_PLAINTEXT=1",
        )


def registry_faults(settings: Settings) -> Iterator[StartRefused]:
    """Half of what is said towards etcd."""
    tls = settings.etcd_tls_cert, settings.etcd_tls_key
    yield from _pair(*tls, ("QIM_ETCD_TLS_CERT", "QIM_ETCD_TLS_KEY"))
    login = settings.etcd_user, settings.etcd_password
    yield from _login("etcd_login_half", *login, ("QIM_ETCD_USER", "QIM_ETCD_PASSWORD"))


def log_faults(settings: Settings) -> Iterator[StartRefused]:
    """Some of the three that make a login at the brokers: without the mechanism nobody would be told the name."""
    told = {
        "QIM_REDPANDA_SASL_MECHANISM": settings.redpanda_sasl_mechanism,
        "QIM_REDPANDA_SASL_USER": settings.redpanda_sasl_user,
        "QIM_REDPANDA_SASL_PASSWORD": settings.redpanda_sasl_password,
    }
    here = [name for name, value in told.items() if value is not None]
    absent = [name for name, value in told.items() if value is None]
    if here and absent:
        yield StartRefused(
            "brokers_login_half",
            here[0],
            got=f"set without {' and '.join(absent)}",
            expected="all three or none: half a login must not end in none",
            command=f"export {absent[0]}=…",
        )


def _archive_login(settings: Settings) -> Iterator[StartRefused]:
    login = settings.scylla_user, settings.scylla_password
    yield from _login("archive_login_half", *login, ("QIM_SCYLLA_USER", "QIM_SCYLLA_PASSWORD"))


def _pair(
    certificate: str | None, key: str | None, names: tuple[str, str]
) -> Iterator[StartRefused]:
    yield from _refusal_of(lambda: pair_of(certificate or "", key or "", names))


def _login(
    code: str, name: str | None, password: str | None, names: tuple[str, str]
) -> Iterator[StartRefused]:
    if (name is None) != (password is None):
        here, absent = names if password is None else reversed(names)
        yield StartRefused(
            code,
            here,
            got=f"set without {absent}",
            expected="both or neither: half a login must not end in none",
            command=f"export {absent}=…",
        )


def _internal_tls(settings: Settings, role: ServiceRole) -> Iterator[StartRefused]:
    told = None
    try:
        told = InternalTlsSettings.from_environment(settings.told())
    except StartRefused as refused:
        yield refused
    if told is not None:
        yield from told.faults(ProcessRole(role.value))
        return
    for listener in _internal_listeners(settings):
        if not is_loopback(listener[0]):
            yield StartRefused(
                "internal_plaintext",
                f"the internal listener {show_address(listener)}",
                got="reachable from other machines, in plaintext",
                expected="mTLS, or every internal listener on loopback",
                command="qim certs dev  # then set QIM_INTERNAL_TLS_CERT, _KEY, _CLIENT_CA and _SERVER_CA",
            )


def _internal_listeners(settings: Settings) -> tuple[Address, ...]:
    return (
        settings.gateway_push,
        settings.writer_listen,
        settings.mailbox_listen,
        settings.session_listen,
        settings.auditor_listen,
    )


def _secret(settings: Settings, role: ServiceRole) -> Iterator[StartRefused]:
    if role not in _SIGNS or settings.auth_secret != DEVELOPMENT_SECRET:
        return
    for listener in (settings.gateway_listen, *_internal_listeners(settings)):
        if not is_loopback(listener[0]):
            yield StartRefused(
                "auth_secret_default",
                "QIM_AUTH_SECRET",
                got=f"the development default, while {show_address(listener)} is listened on",
                expected="a secret of your own outside loopback: the default is public",
                command='export QIM_AUTH_SECRET="$(openssl rand -hex 32)"',
            )
            return


def _advertised(settings: Settings, role: ServiceRole) -> Iterator[StartRefused]:
    listener = settings.internal_listen(role)
    if listener is not None and is_wildcard(listener[0]) and settings.internal_advertise is None:
        yield StartRefused(
            "internal_address_unknown",
            "QIM_INTERNAL_ADVERTISE",
            got=f"not set, while {role} listens on {show_address(listener)}",
            expected="HOST:PORT that other processes dial; an address of every interface can't be dialled",
            command=f"export QIM_INTERNAL_ADVERTISE=$(hostname -f):{listener[1]}",
        )


def _hooks(settings: Settings) -> Iterator[StartRefused]:
    if settings.webhook_before_send_url or settings.webhook_after_send_url:
        yield from _refusal_of(lambda: _hooks_words(settings))


def _hooks_words(settings: Settings) -> None:
    """Raises StartRefused, ModuleNotFoundError."""
    from qim.adapters.webhook.settings import settings_from

    settings_from(settings.told())
