"""What must not start, judged from the settings alone: before any connection is made (issue: start-up checks)."""

from collections.abc import Iterator
from typing import Final

from qim.adapters.loopback import is_loopback
from qim.adapters.rpc.roles import ProcessRole, callers_of, dialled_by
from qim.adapters.start_refused import StartRefused
from qim.core.contract.params import ParametersInvalid
from qim.services.roles import ServiceRole
from qim.services.settings.model import DEVELOPMENT_SECRET, Settings
from qim.services.settings.table import VARIABLES
from qim.services.settings.values import Address, show_address

_SIGNS: Final = frozenset({ServiceRole.GATEWAY, ServiceRole.MAILBOX})
_ARCHIVE_READERS: Final = frozenset({ServiceRole.WRITER, ServiceRole.MAILBOX, ServiceRole.ARCHIVER})
_INTERNAL_FILES: Final = (
    "QIM_INTERNAL_TLS_CERT",
    "QIM_INTERNAL_TLS_KEY",
    "QIM_INTERNAL_TLS_CLIENT_CA",
    "QIM_INTERNAL_TLS_SERVER_CA",
)
WILDCARDS: Final = ("0.0.0.0", "::")


def check_settings(settings: Settings, role: ServiceRole) -> tuple[StartRefused, ...]:
    """Every reason why a process of this role must not start with these settings (pure)."""
    return (
        *_missing(settings, role),
        *_topics(settings, role),
        *parameter_faults(settings),
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
            yield StartRefused(
                "config_parameters",
                f"the parameter {fault.name}",
                got=fault.got,
                expected=fault.expected,
                command=f"qim config print  # {fault.remedy}",
            )


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
    for name in ("scylla_hosts", "scylla_keyspace", "scylla_dc", "scylla_rf"):
        if getattr(settings, name) is None:
            variable = f"QIM_{name.upper()}"
            yield StartRefused(
                "config_missing",
                f"{variable} for {role}, as QIM_MESSAGE_STORE_BACKEND is tiered",
                got="not set",
                expected="set with the others of QIM_SCYLLA_*, or QIM_MESSAGE_STORE_BACKEND=redis for development",
                command=f"export {variable}=…",
            )


def _client_tls(settings: Settings, role: ServiceRole) -> Iterator[StartRefused]:
    yield from _pair(settings.tls_cert, settings.tls_key, "QIM_TLS_CERT", "QIM_TLS_KEY")
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
    yield from _pair(*tls, "QIM_ETCD_TLS_CERT", "QIM_ETCD_TLS_KEY")
    login = settings.etcd_user, settings.etcd_password
    yield from _pair(*login, "QIM_ETCD_USER", "QIM_ETCD_PASSWORD", "etcd_login_half")


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
    yield from _pair(*login, "QIM_SCYLLA_USER", "QIM_SCYLLA_PASSWORD", "archive_login_half")


def _pair(
    first: str | None,
    second: str | None,
    first_name: str,
    second_name: str,
    code: str = "tls_pair_half",
) -> Iterator[StartRefused]:
    if (first is None) != (second is None):
        here, absent = (first_name, second_name) if second is None else (second_name, first_name)
        yield StartRefused(
            code,
            here,
            got=f"set without {absent}",
            expected="both or neither: half a pair must not end in none",
            command=f"export {absent}=…",
        )


def _internal_tls(settings: Settings, role: ServiceRole) -> Iterator[StartRefused]:
    files = settings.internal_tls()
    if any(files) and not all(files):
        absent = [name for name, value in zip(_INTERNAL_FILES, files, strict=True) if not value]
        yield StartRefused(
            "internal_tls_half",
            "mTLS between processes",
            got=f"set up without {', '.join(absent)}",
            expected="all four of QIM_INTERNAL_TLS_CERT, _KEY, _CLIENT_CA and _SERVER_CA, or none",
            command=f"export {absent[0]}=…  # `qim certs dev` makes a chain",
        )
    if not all(files):
        for listener in _internal_listeners(settings):
            if not is_loopback(listener[0]):
                yield StartRefused(
                    "internal_plaintext",
                    f"the internal listener {show_address(listener)}",
                    got="reachable from other machines, in plaintext",
                    expected="mTLS, or every internal listener on loopback",
                    command="qim certs dev  # then set QIM_INTERNAL_TLS_CERT, _KEY, _CLIENT_CA and _SERVER_CA",
                )
        return
    yield from _names_and_lists(settings, ProcessRole(role.value))


def _names_and_lists(settings: Settings, role: ProcessRole) -> Iterator[StartRefused]:
    """mTLS is set up: whom this role dials it knows by name, who dials it by certificate."""
    for target in dialled_by(role):
        named = getattr(settings, f"internal_tls_server_name_{target}")
        if settings.internal_tls_server_name is None and named is None:
            variable = f"QIM_INTERNAL_TLS_SERVER_NAME_{target.upper()}"
            yield StartRefused(
                "internal_server_name_missing",
                f"the name expected of a {target}",
                got=f"neither QIM_INTERNAL_TLS_SERVER_NAME nor {variable}",
                expected="one of them, as any certificate of the CA would do otherwise",
                command="export QIM_INTERNAL_TLS_SERVER_NAME=…",
            )
    for caller in callers_of(role):
        variable = f"QIM_INTERNAL_{caller.upper()}_CERT_SHA256"
        if caller is not ProcessRole.ADMIN and not getattr(
            settings, f"internal_{caller}_cert_sha256"
        ):
            yield StartRefused(
                "internal_role_list_missing",
                variable,
                got="not set",
                expected=f"the SHA-256 of each {caller}'s leaf certificate: without it none may speak",
                command=f"export {variable}=$(openssl x509 -in {caller}.pem -outform DER | openssl dgst -sha256 -r | cut -d' ' -f1)",
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
    if listener is not None and listener[0] in WILDCARDS and settings.internal_advertise is None:
        yield StartRefused(
            "internal_address_unknown",
            "QIM_INTERNAL_ADVERTISE",
            got=f"not set, while {role} listens on {show_address(listener)}",
            expected="HOST:PORT that other processes dial; an address of every interface can't be dialled",
            command=f"export QIM_INTERNAL_ADVERTISE=$(hostname -f):{listener[1]}",
        )


def _hooks(settings: Settings) -> Iterator[StartRefused]:
    for name in ("webhook_before_send_url", "webhook_after_send_url"):
        url = getattr(settings, name)
        if url is not None and not url.startswith(("http://", "https://")):
            yield StartRefused(
                "webhook_url",
                f"QIM_{name.upper()}",
                got=url,
                expected="http:// or https://",
                command=f"export QIM_{name.upper()}=https://…",
            )
