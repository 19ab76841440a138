"""How a value is shown that may not be: enough to compare it by, and to see where it leads (contract/redact.py)."""

from urllib.parse import urlsplit

from qim.core.contract.redact import secret_digest


def without_login(text: str) -> str:
    """An address whose user and password are a digest: host:port, redis://h:…@host:port."""
    head, at, host = text.rpartition("@")
    scheme = f"{head.partition('://')[0]}://" if "://" in head else ""
    return f"{scheme}{secret_digest(head)}@{host}" if at else text


def host_alone(url: str) -> str:
    """A URL whose login, path and query may each be a key: scheme and host, and a digest of the whole."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return secret_digest(url)
    shown = secret_digest(url)
    return f"{parts.scheme}://{parts.hostname}/{shown}" if parts.hostname else shown
