"""Which PEM files somebody was told to use: paths alone, so that they are judged also where no library reads certificates."""

from pathlib import Path

from msgspec import Struct

from qim.adapters.start_refused import StartRefused


class TlsPair(Struct, frozen=True, kw_only=True):
    """PEM files. ``names``: the variables they came from, for what is told about them."""

    certificate: Path
    key: Path
    names: tuple[str, str]


def pair_of(certificate: str, key: str, names: tuple[str, str]) -> TlsPair | None:
    """None where neither is set. Raises StartRefused on half a pair: it must not become plaintext by a typing error."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        missing, given = (names[0], names[1]) if not certificate else (names[1], names[0])
        raise StartRefused(
            "tls_half_pair",
            missing,
            got=f"not set while {given} is",
            expected="both of them, or neither",
            command=f"export {missing}=/path/to/file.pem, or: unset {given}",
        )
    return TlsPair(certificate=Path(certificate), key=Path(key), names=names)
