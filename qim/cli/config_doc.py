"""docs/configuration.md, drawn from the code: `python -m qim.cli.config_doc` writes it, a test compares it.

Every variable of `qim serve` with its default and what refuses it; nothing is said here that the settings don't hold.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from qim.services.cluster import shared
from qim.services.roles import ServiceRole
from qim.services.settings import Settings
from qim.services.settings.obsolete import ELSEWHERE, OBSOLETE, TEST_PREFIX
from qim.services.settings.table import VARIABLES, Variable

DEFAULT_TARGET = Path("docs/configuration.md")
SHARED = frozenset(shared.VARIABLES.values())

INTRODUCTION = """\
# Configuration

<!-- Written by `python -m qim.cli.config_doc`; a test compares it with the code. Edit the code. -->

What `qim serve` is told. The embedded server takes options instead: `qim up --help`.

- A variable stands in the environment, or in a TOML file (`--config FILE`, or `QIM_CONFIG`) under its name without `QIM_`,
  in small letters: `redis_addr = "10.0.0.5:6379"`. Lists may be TOML arrays. The environment goes before the file.
- An unknown key of the file, and an unknown `QIM_…` of the environment, refuse the start and name the nearest known one.
  Variables of the tests (`QIM_TEST_…`) and of other commands, below, are let pass. Kubernetes puts variables of its own beside
  them where a Service is called `qim-…` (`QIM_WRITER_SERVICE_HOST`): `enableServiceLinks: false` in the pod.
- `qim config check` says everything that the configuration would be refused for, for every role or for `--role ROLE`; files that
  it names and servers are looked at by a start, and by `qim doctor`. `qim config print` shows each value and where it came
  from. Secrets are shown as digests.
- *needed* means: there is no default and the named roles refuse to start without it.
- Parameters that processes must share (marked *shared*, with every other shared parameter of contract.md) are written to the
  registry by the first process that starts; a process with others refuses to start and names the difference. With every
  process stopped `qim config share --apply` changes what may change (with an admin's certificate): retention, hot window,
  recovery windows.
"""

REFUSALS = """\
## What is refused before anything is connected

| code | when |
|---|---|
| `config_unknown_key` | a name that isn't here |
| `config_value` | a value that isn't of its form |
| `config_missing` | a needed variable isn't set |
| `config_file` | the file can't be read, or isn't TOML |
| `config_parameters` | windows out of their legal order (contract.md), a lease renewed later than it ends |
| `config_obsolete`, `store_backend_deprecated` | a variable without a meaning whose value could be relied on |
| `topics_not_distinct` | two of the three topics have one name |
| `archiver_without_archive` | an archiver without `QIM_MESSAGE_STORE_BACKEND=tiered` |
| `tls_half_pair` | a certificate without its key, or the reverse: never ends in plaintext |
| `clients_plaintext` | a gateway outside loopback without TLS, unless `QIM_GATEWAY_PLAINTEXT=1` says that something in front of it has it |
| `internal_tls_incomplete` | some of the four files of mTLS between processes |
| `internal_plaintext` | any internal listener outside loopback without mTLS |
| `internal_server_name_missing` | mTLS without the name expected of those it dials |
| `internal_role_list_missing` | mTLS without the certificates of a role that speaks to this one |
| `internal_address_unknown` | a listener on every interface without `QIM_INTERNAL_ADVERTISE` |
| `auth_secret_default` | the development secret while anything listens outside loopback |
| `etcd_login_half`, `archive_login_half` | a name at etcd or the archive without its password, or the reverse |
| `brokers_login_half` | some of mechanism, name and password at the brokers |
| `redis_address`, `redis_unsafe_dev_elsewhere` | an address of a store that is none; `QIM_REDIS_ALLOW_UNSAFE_DEV` for one on another machine |
| `archive_hosts_invalid`, `archive_keyspace_invalid`, `archive_unsafe_dev_abroad` | contact points or a keyspace that are none; `QIM_SCYLLA_ALLOW_UNSAFE_DEV` for nodes on other machines |
| `webhook_url`, `webhook_secret` | a hook that is neither http:// nor https:// or has no host; a secret that is none of Standard Webhooks |

What servers are refused for (version, durability, topics, replication) is in
[operations.md](operations.md#servers-that-are-refused).
"""


def document() -> str:
    """The whole page."""
    return "\n".join(_parts()).rstrip() + "\n"


def _parts() -> Iterator[str]:
    yield INTRODUCTION
    for group, variables in groupby(VARIABLES, key=lambda variable: variable.group):
        yield f"## {group}\n"
        yield _table(("variable", "default", "form", "meaning"), [_row(one) for one in variables])
        yield ""
    yield REFUSALS
    yield "## Of the seed, without a meaning here\n"
    rows = [(f"`{one.name}`", _fate(one.harmless), one.why, one.instead) for one in OBSOLETE]
    yield _table(("variable", "is", "because", "instead"), rows)
    yield "\n## Of other commands\n"
    told = [(f"`{name}`", meaning) for name, meaning in ELSEWHERE.items()]
    yield _table(("variable", "meaning"), [*told, (f"`{TEST_PREFIX}…`", "servers of the tests")])


def _row(variable: Variable) -> tuple[str, str, str, str]:
    mark = "; *shared*" if variable.name in SHARED else ""
    return (
        f"`{variable.name}`",
        _default(variable),
        variable.kind.expected,
        f"{variable.meaning}{mark}",
    )


def _default(variable: Variable) -> str:
    told = [variable.default_told] if variable.default_told else []
    value = getattr(Settings(), variable.key)
    if variable.needed_by:
        every = frozenset(ServiceRole)
        roles = (
            "every role" if variable.needed_by == every else ", ".join(sorted(variable.needed_by))
        )
        return "; ".join([f"*needed* by {roles}", *told])
    if told:
        return told[0]
    return "–" if value in (None, ()) else f"`{variable.kind.show(value)}`"


def _fate(harmless: str) -> str:
    if harmless == "*":
        return "let pass with a remark"
    return f"refused, unless {harmless}" if harmless else "refused"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page to the given path, or docs/configuration.md."""
    told = list(sys.argv[1:] if arguments is None else arguments)
    (Path(told[0]) if told else DEFAULT_TARGET).write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
