"""Runs inside the box while the unit is disturbed: one producer that keeps sending, and threads that connect without pause.

`python -m tests.systemd.load SOCKET TOPIC STOP_FILE`: goes on until STOP_FILE exists, then flushes and writes one JSON line.
"""

import json
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from penstock.client import Producer
from penstock.wire import frames

CONNECTORS = 4
RATE = 500


def connect_without_pause(path: str, stop: threading.Event, counts: Counter[str], waits: list[float]) -> None:
    """Connect, greet, wait for WELCOME, close; again and again. A refused connect is what must not happen."""
    while not stop.is_set():
        began = time.monotonic()
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            client.connect(path)
            counts["connected"] += 1
            client.settimeout(30)
            client.sendall(frames.hello(None))
            # A router that is killed in this moment closes the connection; only a refused connect counts.
            counts["welcomed" if client.recv(4) else "closed"] += 1
        except (ConnectionRefusedError, FileNotFoundError):
            counts["refused"] += 1
        except OSError:
            counts["closed"] += 1
        finally:
            client.close()
        waits.append(time.monotonic() - began)
        stop.wait(0.01)


def main() -> int:
    path, topic, stop_file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    stop = threading.Event()
    counts: Counter[str] = Counter()
    waits: list[float] = [0.0]
    threads = [
        threading.Thread(target=connect_without_pause, args=(path, stop, counts, waits)) for _ in range(CONNECTORS)
    ]
    for thread in threads:
        thread.start()
    outcomes: Counter[str] = Counter()
    producer = Producer(path, client_id="unit-load")
    began = time.monotonic()
    number = 0
    while not stop_file.exists():
        while number < int((time.monotonic() - began) * RATE):
            future = producer.send(topic, b"%d" % number, key=b"%d" % (number % 10))
            future.add_done_callback(lambda done: outcomes.update(["failed" if done.exception() else "acknowledged"]))
            number += 1
        stop.wait(0.005)
    producer.flush(timeout=90)
    producer.close(timeout=10)
    stop.set()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps({"sent": number, **outcomes, **counts, "wait_max_s": max(waits)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
