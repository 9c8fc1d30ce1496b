"""Ports of the loopback for servers that tests start, kill and start again.

Whoever had a port while it lived gets it back after it was dead for a while. So no two test runs may choose from the same ports: each
process claims a block of them, and hands out each of its ports once before it begins anew.
"""

import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice
from typing import Final

PORTS: Final = range(20_000, 32_000)
"""Below the kernel's range for outgoing connections, so that a port stays free while its owner is dead."""
BLOCK: Final = 400


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody holds now, and that no other test run chooses. Raise RuntimeError when there are none."""
    _, ports = _claimed()
    found: list[int] = []
    for port in islice(ports, BLOCK - 1):
        with socket.socket() as probe:
            if _bound(probe, port):
                found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"{count} free ports are wanted, and the block of this process has {len(found)}")


@cache
def _claimed() -> tuple[socket.socket, Iterator[int]]:
    """The socket that claims a block, by its first port and until this process ends; and the others of the block, for ever."""
    for first in PORTS[::BLOCK]:
        claim = socket.socket()
        if _bound(claim, first):
            return claim, cycle(range(first + 1, first + BLOCK))
        claim.close()
    raise RuntimeError(f"all {len(PORTS) // BLOCK} blocks of ports are claimed: do that many test runs go on?")


def _bound(held: socket.socket, port: int) -> bool:
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
