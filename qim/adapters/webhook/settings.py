"""Which hooks there are, how long they may take, and what holds when they don't answer. Read once, checked once."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.outgoing import OutgoingFiles
from qim.adapters.webhook.signing import SECRET_BYTES_MAX, SECRET_BYTES_MIN, secret_of
from qim.core.ports.moderation import FailPolicy

PREFIX: Final = "QIM_WEBHOOK_"
TIMEOUT_MS: Final = 2_000
TIMEOUT_MS_MAX: Final = 8_000
"""A send waits for the verdict, and its own time is 10 s."""


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """ "" for a hook that is not there. ``secrets``: keys of webhook-signature, the present one first; none: unsigned.

    ``asks_inflight_max``: asks at a time of this process, more are UNAVAILABLE at once; ``notices_waiting_max``: notices
    not sent yet, more are dropped and counted; ``notices_inflight_max``: notices sent at a time.
    """

    before_send_url: str = ""
    after_send_url: str = ""
    fail_policy: FailPolicy = FailPolicy.OPEN
    secrets: tuple[bytes, ...] = ()
    timeout_ms: int = TIMEOUT_MS
    tls_ca: str = ""
    asks_inflight_max: int = 1_024
    notices_waiting_max: int = 10_000
    notices_inflight_max: int = 8
    connections_max: int = 128
    close_timeout_ms: int = 3_000

    def tls_files(self) -> OutgoingFiles:
        """Of https hooks: the CA alone, we prove ourselves by signing."""
        return OutgoingFiles(ca=self.tls_ca, names=(f"{PREFIX}TLS_CA", "", ""))

    @property
    def before_send(self) -> FailPolicy:
        """For WriterConfig: OFF where nobody is asked."""
        return self.fail_policy if self.before_send_url else FailPolicy.OFF

    @property
    def after_send(self) -> bool:
        """For WriterConfig: whether somebody is told."""
        return bool(self.after_send_url)


def settings_from(environment: Mapping[str, str]) -> WebhookSettings:
    """From QIM_WEBHOOK_BEFORE_SEND_URL, _AFTER_SEND_URL, _FAIL_POLICY, _SECRET, _TIMEOUT_MS, _TLS_CA. Raises StartRefused."""
    return WebhookSettings(
        before_send_url=_url("BEFORE_SEND_URL", environment),
        after_send_url=_url("AFTER_SEND_URL", environment),
        fail_policy=_policy(environment.get(f"{PREFIX}FAIL_POLICY", "")),
        secrets=_secrets(environment.get(f"{PREFIX}SECRET", "")),
        timeout_ms=_timeout(environment.get(f"{PREFIX}TIMEOUT_MS", "")),
        tls_ca=environment.get(f"{PREFIX}TLS_CA", ""),
    )


def _url(name: str, environment: Mapping[str, str]) -> str:
    text = environment.get(PREFIX + name, "")
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        # Not the text itself: login, path and query of a hook may each be a key.
        scheme, separator, _ = text.partition("://")
        got = f"a URL of the scheme {scheme[:16]!r}" if separator else "no URL"
        raise _wrong("webhook_url", name, got, "http:// or https:// and a host", "https://…")
    return text


def _policy(text: str) -> FailPolicy:
    if text not in ("", FailPolicy.OPEN, FailPolicy.CLOSED):
        raise _wrong("webhook_fail_policy", "FAIL_POLICY", text, "open or closed", "closed")
    return FailPolicy(text or FailPolicy.OPEN)


def _secrets(text: str) -> tuple[bytes, ...]:
    """Several by blanks: the present one first, then those receivers may still hold."""
    keys = [secret_of(part) for part in text.split()]
    found = tuple([key for key in keys if key is not None])
    if len(found) < len(keys):
        wanted = f"whsec_ and base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"
        made = '"whsec_$(openssl rand -base64 32)"'
        raise _wrong("webhook_secret", "SECRET", "something else", wanted, made)
    return found


def _timeout(text: str) -> int:
    if not text:
        return TIMEOUT_MS
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= TIMEOUT_MS_MAX:
        wanted = f"1 to {TIMEOUT_MS_MAX}"
        raise _wrong("webhook_timeout", "TIMEOUT_MS", text, wanted, str(TIMEOUT_MS))
    return int(text)


def _wrong(code: str, name: str, got: str, expected: str, example: str) -> StartRefused:
    return StartRefused(
        code,
        PREFIX + name,
        got=got,
        expected=expected,
        command=f"export {PREFIX}{name}={example}",
    )
