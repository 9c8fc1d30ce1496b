"""The sync thread, the only one beside the router's loop. It only calls the disk's sync, which releases the GIL."""

import os
import queue
import threading
from typing import NamedTuple

from .disk import Disk


class SyncJob(NamedTuple):
    """Files to sync, oldest first, then the directory if names in it are new."""

    files: list[int]
    directory: int | None


class Syncer:
    """Runs one job at a time in a thread. `fd` (an eventfd) becomes readable when the job has finished."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._jobs: queue.SimpleQueue[SyncJob | None] = queue.SimpleQueue()
        self._error: OSError | None = None
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.running = False
        self._thread = threading.Thread(target=self._run, name="spool-sync", daemon=True)
        self._thread.start()

    def start(self, job: SyncJob) -> None:
        """Start a job. No other job may be running."""
        assert not self.running, "a sync runs"
        self.running = True
        self._jobs.put(job)

    def wait(self) -> OSError | None:
        """Block until the job has finished, and return its error, or None. If `fd` is readable, this does not block."""
        assert self.running, "no sync runs"
        os.set_blocking(self.fd, True)
        os.eventfd_read(self.fd)
        os.set_blocking(self.fd, False)
        self.running = False
        error, self._error = self._error, None
        return error

    def close(self) -> None:
        """Stop the thread, after the running job has finished."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self.fd)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                for file in job.files:
                    self._disk.sync(file)
                if job.directory is not None:
                    self._disk.sync_directory(job.directory)
            except OSError as error:
                self._error = error
            os.eventfd_write(self.fd, 1)
