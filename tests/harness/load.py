"""Several client processes at once, and waits on what they report of their progress."""

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from .ledger import Ledger, read_ledger
from .load_client import Job
from .processes import Deadline, end, start_tied, tail


class _Running:
    """One client process and the last progress it told."""

    def __init__(self, jobs: Sequence[Job], process: subprocess.Popen[bytes], errors: Path) -> None:
        self.jobs = jobs
        self.process = process
        self.errors = errors
        self.sent = 0
        self.answered = 0
        self.done = False
        self._part = b""

    def take(self, data: bytes) -> None:
        """Apply the whole lines of what was read."""
        *lines, self._part = (self._part + data).split(b"\n")
        for line in lines:
            if line == b"done":
                self.done = True
            else:
                sent, answered = line.split()
                self.sent, self.answered = int(sent), int(answered)


class Load:
    """Runs jobs side by side. Use it in a `with`: whatever still runs at the end is ended."""

    def __init__(self, jobs: Iterable[Job], folder: Path, *, together: bool = False) -> None:
        """Start one process a job, or one for all of them `together`; their standard error goes to files in `folder`."""
        self._selector = selectors.DefaultSelector()
        self._clients: list[_Running] = []
        every = list(jobs)
        for group in [every] if together else [[job] for job in every]:
            errors = folder / f"{group[0].client}.stderr"
            text = json.dumps([{**job._asdict(), "shape": job.shape._asdict()} for job in group])
            with errors.open("wb") as file:
                process = start_tied(
                    [sys.executable, "-m", "tests.harness.load_client", text], stdout=subprocess.PIPE, stderr=file
                )
            client = _Running(group, process, errors)
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            _ = self._selector.register(process.stdout, selectors.EVENT_READ, client)
            self._clients.append(client)

    @property
    def pids(self) -> list[int]:
        """The client processes."""
        return [client.process.pid for client in self._clients]

    @property
    def sent(self) -> int:
        """Records for which calls were made, by all clients, as last told."""
        return sum(client.sent for client in self._clients)

    @property
    def answered(self) -> int:
        """Records that came to an end, of all clients, as last told."""
        return sum(client.answered for client in self._clients)

    @property
    def finished(self) -> bool:
        """Whether every client has said that it is done."""
        return all(client.done for client in self._clients)

    def wait_sent(self, count: int, *, seconds: float = 60) -> None:
        """Wait until the clients have called for `count` records together, or are done. Raise TooLateError."""
        deadline = Deadline(seconds, f"{count} records sent (now {self.sent}, answered {self.answered})")
        while self.sent < count and not self.finished:
            self._read(deadline)

    def wait_answered(self, count: int, *, seconds: float = 60) -> None:
        """Wait until `count` records have an outcome, or the clients are done. Raise TooLateError."""
        deadline = Deadline(seconds, f"{count} records answered (sent {self.sent}, now {self.answered})")
        while self.answered < count and not self.finished:
            self._read(deadline)

    def read_until(self, at: float) -> None:
        """Follow the clients until that moment (CLOCK_MONOTONIC seconds), or until they are done."""
        while (left := at - monotonic()) > 0 and not self.finished:
            self._read(Deadline(left + 1.0, "the time is over"), wait_s=left)

    def wait_done(self, *, seconds: float) -> None:
        """Wait until every client has all its outcomes. Raise TooLateError."""
        deadline = Deadline(seconds, "the clients are done")
        while not self.finished:
            deadline.what = f"the clients are done (sent {self.sent}, answered {self.answered})"
            self._read(deadline)
        for client in self._clients:
            assert client.process.wait(30) == 0, self._failure(client)

    def _read(self, deadline: Deadline, *, wait_s: float = 1.0) -> None:
        for key, _ in self._selector.select(min(1.0, wait_s, deadline.left())):
            client = key.data
            assert isinstance(client, _Running)
            data = os.read(key.fd, 1 << 16)
            client.take(data)
            if not data:
                _ = self._selector.unregister(key.fileobj)
                assert client.done, self._failure(client)

    @staticmethod
    def _failure(client: _Running) -> str:
        return f"client {client.jobs[0].client} ended early:\n{tail(client.errors)}"

    def ledgers(self) -> list[Ledger]:
        """What the clients wrote down."""
        return [read_ledger(Path(job.ledger)) for client in self._clients for job in client.jobs]

    def close(self) -> None:
        """End every process."""
        for client in self._clients:
            _ = end(client.process, seconds=5)
            assert client.process.stdout is not None
            client.process.stdout.close()
        self._selector.close()

    def __enter__(self) -> Self:
        """For `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """End what runs; a failure names what the clients said."""
        self.close()
        if raised is not None:
            for client in self._clients:
                if client.errors.stat().st_size:
                    raised.add_note(f"client {client.jobs[0].client} said:\n{tail(client.errors)}")


def spread(total: int, parts: int) -> Sequence[int]:
    """`total` dealt to `parts` as evenly as it goes."""
    return [total // parts + (number < total % parts) for number in range(parts)]
