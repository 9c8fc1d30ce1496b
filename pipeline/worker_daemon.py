"""The process from which Spark forks its Python workers (`spark.python.daemon.module`): Spark's own, but for one option of a socket.

Spark tells a worker its task in several small writes, each of which waits for the acknowledgement of the one before (RFC 896), and
Linux holds acknowledgements back for 40 ms (RFC 1122, 4.2.3.2) in the hope of an answer to send along. Together that is most of what a
small job with Python in it costs. Unix sockets, which Spark offers too, have no such wait; but a worker that is ended over one after a
minute without work says so in a traceback.
"""

import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """One task, whose first bytes are acknowledged at once. The kernel forgets the option in time, so each task sets it."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _worker(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
