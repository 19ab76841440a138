"""Which hosts are surely this machine: what is waived for development, or may go unencrypted, is so for these alone."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Literally a loopback address, or ``localhost``; no name is resolved, for where one leads is not ours to say."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
