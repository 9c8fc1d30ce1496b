"""The listening socket of client sessions. It outlives the router: it is inherited as descriptor 3 and never closed or
unlinked here."""

import os
import resource
import socket
import stat
from pathlib import Path
from typing import Final

LISTENING_FD: Final = 3


class ListenError(Exception):
    """Descriptor 3 is not the expected socket. The text gives what was found."""


def inherited_socket(path: Path, fd: int = LISTENING_FD) -> socket.socket:
    """Return the listening socket that the launcher put at `fd`.

    Raises:
        ListenError: it is not a listening Unix stream socket bound to `path`.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        raise ListenError(f"descriptor {fd} is not open: the router is started by `penstock run`") from None
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"descriptor {fd} is not a socket: the router is started by `penstock run`")
    found = socket.socket(fileno=os.dup(fd))
    if found.family != socket.AF_UNIX or found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 1:
        raise ListenError(f"descriptor {fd} is not a listening Unix socket")
    if found.getsockname() != str(path):
        raise ListenError(f"descriptor {fd} is bound to {found.getsockname()!r}, the settings say {str(path)!r}")
    found.setblocking(False)
    os.set_inheritable(found.fileno(), False)
    return found


def raise_descriptor_limit() -> int:
    """Raise the descriptor limit to the hard limit and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
