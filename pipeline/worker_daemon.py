"""The process from which Spark forks its Python workers (`spark.python.daemon.module`): Spark's own, but for one option of a socket.

Spark tells a worker its task in several small writes. One waits for the acknowledgement of another (RFC 896), and Linux holds
acknowledgements back for 40 ms (RFC 1122, 4.2.3.2) in the hope of an answer to send along: nearly half of what a small job with Python in
it took. Unix sockets, which Spark offers too, have no such wait; but a worker that is ended over one after a minute without work
says so in a traceback.
"""

import socket
from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark import daemon

Task: TypeAlias = Callable[[socket.socket, bool], int]
"""Does one task, which comes by this socket, of a Spark that has told who it is or has not; the exit status."""


def with_quickack(task: Task) -> Task:
    """The same, and what Spark sends is acknowledged at once. The kernel forgets that in time, so it is told at every task."""

    def run_task(sock: socket.socket, authenticated: bool) -> int:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return task(sock, authenticated)

    return run_task


if __name__ == "__main__":
    # It has no other way in.
    inside: Any = daemon
    inside.worker = with_quickack(inside.worker)
    inside.manager()
