"""One application of the demo: sends numbered records at one level for a while and tells, as JSON, what became of each.

Run as `python -m demo.application --socket S --topic T --name N --level L --seconds S --rate R`.
"""

import argparse
import json
import sys
import threading
import time

from penstock.client import Producer


class Tally:
    """Counts outcomes on the client's thread; `wait_max` is the longest time from send to answer, seconds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acknowledged: list[int] = []
        self.failed: dict[int, str] = {}
        self.wait_max = 0.0

    def note(self, number: int, sent_at: float, error: BaseException | None) -> None:
        waited = time.monotonic() - sent_at
        with self.lock:
            self.wait_max = max(self.wait_max, waited)
            if error is None:
                self.acknowledged.append(number)
            else:
                self.failed[number] = str(error)


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("socket", "topic", "name", "level"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=int, required=True, help="records a second")
    options = parser.parse_args()

    tally = Tally()
    producer = Producer(options.socket, client_id=options.name, level=options.level)
    began = time.monotonic()
    number = 0
    while (elapsed := time.monotonic() - began) < options.seconds:
        while number < int(elapsed * options.rate):
            _send(producer, options.topic, options.name, number, tally)
            number += 1
        threading.Event().wait(0.002)
    producer.flush(timeout=120)
    producer.close(timeout=30)
    outcome = {"sent": number, "acknowledged": tally.acknowledged, "failed": tally.failed, "wait_max_s": tally.wait_max}
    json.dump(outcome, sys.stdout)
    return 0


def _send(producer: Producer, topic: str, name: str, number: int, tally: Tally) -> None:
    sent_at = time.monotonic()
    # A third of the records have a key, so that both ways of choosing a partition are seen.
    key = b"key-%d" % (number % 64) if number % 3 == 0 else None
    value = b"%s %d %s" % (name.encode(), number, b"x" * 80)
    future = producer.send(topic, value, key=key)
    future.add_done_callback(lambda done: tally.note(number, sent_at, done.exception()))


if __name__ == "__main__":
    sys.exit(main())
