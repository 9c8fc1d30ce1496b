"""The process from which Spark forks its Python workers (`spark.python.daemon.module`): Spark's own, with one socket
option added.

Spark sends a worker its task in several small writes. A write waits for the acknowledgement of the one before (RFC
896), and Linux delays acknowledgements by 40 ms (RFC 1122, 4.2.3.2) to send them along with a response. This was nearly
half the time of a small job with Python. Unix sockets, which Spark also offers, have no such delay; but a worker on one
that is ended after a minute without work logs a traceback.
"""

import socket
from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark import daemon

Task: TypeAlias = Callable[[socket.socket, bool], int]
"""Runs one task from this socket. The flag: whether Spark has authenticated. Returns the exit status."""


def with_quickack(task: Task) -> Task:
    """Wrap the task so that the kernel acknowledges Spark's data at once. The kernel forgets the option over time, so
    it is set for every task."""

    def run_task(sock: socket.socket, authenticated: bool) -> int:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return task(sock, authenticated)

    return run_task


if __name__ == "__main__":
    # pyspark has no public setting for this.
    inside: Any = daemon
    inside.worker = with_quickack(inside.worker)
    inside.manager()
