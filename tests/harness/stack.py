"""Router and shards as real processes without a supervisor: tests start, kill and start them again themselves."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from penstock.config import handover
from penstock.config.model import Settings
from penstock.daemon.processes.control_client import ControlError, ask

from .processes import PATIENCE, REPOSITORY, end, start_tied, tail, wait_until
from .raw_session import RawSession

READY_S: Final = 30.0
_AT_THREE: Final = Path(__file__).with_name("at_three.py")


class Stack:
    """One daemon in a folder of its own. The listening socket is the test's, so it outlives every router."""

    def __init__(
        self,
        bootstrap: str,
        *,
        shards: int = 2,
        kafka: Mapping[str, object] | None = None,
        start: bool = True,
        router_prefix: Sequence[str] = (),
        **sections: Mapping[str, object] | str | int,
    ) -> None:
        """Start router and shards; `kafka` and `sections` are settings by their names. `router_prefix`: a command that runs the
        router, such as prlimit."""
        self._router_prefix = router_prefix
        self.folder = Path(tempfile.mkdtemp(prefix="pk-"))
        self.log_path = self.folder / "log"
        runtime = self.folder / "run"
        runtime.mkdir(mode=0o700)
        self.settings = Settings.model_validate(
            {
                "data_dir": sections.pop("data_dir", self.folder / "data"),
                "runtime_dir": runtime,
                "shards": shards,
                "kafka": {"bootstrap.servers": bootstrap, **(kafka or {})},
                **sections,
            }
        )
        self.settings_path = runtime / "settings.json"
        handover.write(self.settings, self.settings_path)
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.settings.socket_path))
        self.listening.listen(4096)
        self.router: subprocess.Popen[bytes] | None = None
        self.shards: dict[int, subprocess.Popen[bytes]] = {}
        if start:
            self.start_router()
            for seat in range(shards):
                self.start_shard(seat)
            self.wait_ready()

    @property
    def socket_path(self) -> Path:
        return self.settings.socket_path

    def start_router(self) -> subprocess.Popen[bytes]:
        """The router, with the listening socket at descriptor 3."""
        fd = self.listening.fileno()
        with self.log_path.open("ab") as log:
            self.router = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(_AT_THREE), str(os.getpid()), str(fd)),
                    *self._router_prefix,
                    *(sys.executable, "-I", "-m", "penstock.daemon.router.main", "--settings", str(self.settings_path)),
                ],
                pass_fds=(fd,),
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.router

    def start_shard(self, seat: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-m", "penstock.shards.worker", "--settings", str(self.settings_path)]
        with self.log_path.open("ab") as log:
            self.shards[seat] = start_tied([*argv, "--seat", str(seat)], stdout=log, stderr=log)
        return self.shards[seat]

    def revive(self) -> None:
        """Start again what has ended, as the supervisor would."""
        if self.router is None or self.router.poll() is not None:
            self.start_router()
        for seat, shard in list(self.shards.items()):
            if shard.poll() is not None:
                self.start_shard(seat)

    def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """The router's answer over the control socket."""
        return cast("dict[str, Any]", ask(self.settings.control_path, verb, **arguments))

    def wait_ready(self) -> None:
        """Until the router takes frames and every shard has greeted; the dead are started again."""

        def look() -> bool:
            self.revive()
            try:
                told = self.ask("ready")
            except ControlError:
                return False
            return bool(told["ready"]) and told["shards"] == self.settings.shards

        try:
            _ = wait_until(look, seconds=READY_S, what="router and shards to be ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{tail(self.log_path)}") from error

    def kill_router(self) -> None:
        """SIGKILL; shards end by themselves."""
        assert self.router is not None
        self.router.kill()
        _ = self.router.wait()

    def kill_shard(self, seat: int) -> None:
        self.shards[seat].kill()
        _ = self.shards[seat].wait()

    def stop_router(self, *, seconds: float = 40) -> int:
        """SIGTERM, and its exit status."""
        assert self.router is not None
        self.router.send_signal(signal.SIGTERM)
        return self.router.wait(seconds * PATIENCE)

    def session(self, client_id: str | None = None, **options: Any) -> RawSession:
        return RawSession(self.socket_path, client_id, **options)

    def close(self) -> None:
        """End everything and remove the folder."""
        for process in (self.router, *self.shards.values()):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                _ = end(process)
        self.listening.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            error.add_note(f"log of router and shards:\n{tail(self.log_path, lines=60)}")
        self.close()
