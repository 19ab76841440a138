"""A name that one process of this machine has at a time: a port that was handed out, a server that was lent.

It is held by a Unix socket of the abstract namespace: the kernel lets go of it however the process ends, no file is left, and
whoever cannot reach the port or server that it stands for (another network namespace) doesn't meet it either.
"""

import errno
import hashlib
import socket


def claimed(name: str) -> socket.socket | None:
    """What holds ``name`` until it is closed; None: somebody has it, perhaps this process."""
    # Names have a greatest length there, and anybody may list them: an address can hold a password.
    digest = hashlib.sha256(name.encode()).hexdigest()
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0qim-test-{digest}")
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return claim
