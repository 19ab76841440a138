"""Which hosts are surely this machine, and which are every interface of it.

What is waived for development, or may go unencrypted, is so for the first alone; the second can be listened on, not dialled.
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Literally a loopback address, or ``localhost``; no name is resolved, for where one leads is not ours to say."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Every address of this machine, however it is written."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host == ""
