"""The launcher: binds the listening socket, writes the files that the processes read, and becomes supervisord.

The socket stays at descriptor 3 of supervisord and of every child, and systemd's descriptor store has a copy: no client
is refused while processes restart, some or all. Descriptor 4 is the launcher's standard error, where every process
writes its log. A record lock on `<runtime_dir>/lock` survives the exec and blocks a second daemon.
"""

import array
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, NoReturn

from ...config import handover
from ...config.model import Settings
from ...runtime.process import JOURNAL_FD, PARENT_VARIABLE, require_assertions
from ...runtime.starts import reset_starts

LISTENER_FD: Final = 3
BACKLOG: Final = 4096
_KEPT_FDS: Final = 16
_STOP_SLACK_S: Final = 15
_MALLOC: Final = {
    # Page faults were a quarter of the cost: keep freed memory instead of returning it at every frame.
    "MALLOC_TRIM_THRESHOLD_": "268435456",
    "MALLOC_MMAP_THRESHOLD_": "67108864",
    "MALLOC_TOP_PAD_": "16777216",
    "MALLOC_ARENA_MAX": "2",
}


class LaunchError(Exception):
    """Nothing was started; the text gives the reason and what to do."""


@dataclass(frozen=True, slots=True)
class EmbeddedBrokers:
    """Built-in brokers for trying out the daemon, which run beside it."""

    addresses: tuple[str, ...]
    topics: tuple[str, ...]
    log_dir: Path


def launch(settings: Settings, *, brokers: EmbeddedBrokers | None = None) -> NoReturn:
    """Become supervisord with everything in place.

    Raises:
        LaunchError: another daemon holds the runtime directory, or a directory or the socket cannot be created.
    """
    require_assertions()
    os.umask(0o077)
    # The low descriptors are reserved: everything opened from here on must be above them.
    _occupy_low_descriptors()
    _make_directories(settings)
    _hold_lock(settings.runtime_dir / "lock")
    reset_starts(settings.runtime_dir)
    settings_file = settings.runtime_dir / "settings.json"
    handover.write(settings, settings_file)
    configuration = settings.runtime_dir / "supervisord.conf"
    configuration.write_text(
        supervisor_configuration(settings, settings_file, brokers, journal="JOURNAL_STREAM" in os.environ)
    )
    os.dup2(2, JOURNAL_FD, inheritable=True)
    _listen(settings)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    }
    environment |= {PARENT_VARIABLE: str(os.getpid()), "PENSTOCK_JOURNAL": "1"}
    os.execve(  # noqa: S606 - our own interpreter with our own arguments
        sys.executable,
        [sys.executable, "-I", "-m", "supervisor.supervisord", "-n", "-c", str(configuration)],
        environment,
    )


def supervisor_configuration(
    settings: Settings, settings_file: Path, brokers: EmbeddedBrokers | None, *, journal: bool
) -> str:
    """The text of supervisord's configuration."""
    template = resources.files("penstock.config").joinpath("supervisord.conf").read_text()
    output = (
        "stdout_logfile=NONE\nstdout_syslog=true"
        if journal
        else f"stdout_logfile=/dev/fd/{JOURNAL_FD}\nstdout_logfile_maxbytes=0"
    )
    return template.format(
        runtime_dir=_escaped(settings.runtime_dir),
        # Without an explicit user, supervisord logs a critical message at every start.
        user="user=root" if os.geteuid() == 0 else "",
        settings=_escaped(settings_file),
        python=_escaped(sys.executable),
        shards=settings.shards,
        router_stop_s=settings.timeouts.drain_ms // 1000 + _STOP_SLACK_S,
        environment=",".join(f'{name}="{value}"' for name, value in _MALLOC.items()),
        early_output=output,
        early_errors=output.replace("stdout", "stderr"),
        brokers=_broker_programs(brokers, output),
    )


def _escaped(text: object) -> str:
    return str(text).replace("%", "%%")


def _broker_programs(brokers: EmbeddedBrokers | None, output: str) -> str:
    if brokers is None:
        return ""
    nodes = ",".join(f"{number}@{address}" for number, address in enumerate(brokers.addresses))
    topics = "".join(f" --topic {topic}" for topic in brokers.topics)
    sections = [
        f"\n[program:broker-{number}]\n"
        f"command={_escaped(sys.executable)} -I -m penstock.broker.server --node-id {number} --listen {address} --nodes {nodes}"
        f" --log-dir {_escaped(brokers.log_dir / str(number))} --catalogue-dir {_escaped(brokers.log_dir / 'catalogue')}{topics}\n"
        "priority=50\nautorestart=true\nstartsecs=0\nstartretries=1000000\nstopwaitsecs=10\nredirect_stderr=true\n"
        f"{output}\n"
        for number, address in enumerate(brokers.addresses)
    ]
    return "".join(sections)


def _occupy_low_descriptors() -> None:
    """Occupy the low descriptors, so that no file opened later gets 3 or 4. A socket from systemd stays."""
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < _KEPT_FDS:
        pass
    os.close(descriptor)


def _make_directories(settings: Settings) -> None:
    wanted = [
        (settings.runtime_dir, 0o750),
        (settings.bus_path.parent, 0o700),
        (settings.data_dir, 0o700),
        (settings.journal_dir, 0o700),
        (settings.spool_dir, 0o700),
        (settings.dead_letter_dir, 0o700),
    ]
    for path, mode in wanted:
        try:
            path.mkdir(mode=mode, parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(
                f"{path} cannot be made: {error.strerror}. Create it for this user, or set another directory."
            ) from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise LaunchError(
                f"{path} cannot be written by uid {os.getuid()}. Change its owner, or set another directory."
            )
    settings.bus_path.parent.chmod(0o700)


def _hold_lock(path: Path) -> None:
    """Take a POSIX record lock: kept across exec, not inherited by children, released when the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise LaunchError(
            f"another Penstock (pid {holder}) runs with {path.parent}. Stop it, or give this one its own runtime_dir and data_dir."
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    os.set_inheritable(descriptor, True)


def _listen(settings: Settings) -> None:
    """Put the listening socket at descriptor 3: the one that systemd stored, if it still matches, else a new one."""
    path = settings.socket_path
    if _stored_socket_is(path):
        os.set_inheritable(LISTENER_FD, True)
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(int(settings.socket_mode, 8))
        listener.listen(BACKLOG)
    except OSError as error:
        raise LaunchError(f"the socket {path} cannot be bound: {error.strerror}") from error
    os.dup2(listener.fileno(), LISTENER_FD, inheritable=True)
    listener.close()
    _store_socket(os.environ)


def _stored_socket_is(path: Path) -> bool:
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return False
    stored = socket.socket(fileno=os.dup(LISTENER_FD))
    with stored:
        name = stored.getsockname()
        listening = stored.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    if listening and name == str(path) and path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        return True
    # The setting or the file changed: systemd must drop the old socket.
    _notify_systemd(os.environ, b"FDSTOREREMOVE=1\nFDNAME=penstock", [])
    return False


def _store_socket(environment: Mapping[str, str]) -> None:
    _notify_systemd(environment, b"FDSTORE=1\nFDNAME=penstock", [LISTENER_FD])


def _notify_systemd(environment: Mapping[str, str], text: bytes, descriptors: list[int]) -> None:
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        notify.sendmsg([text], rights, 0, address)
