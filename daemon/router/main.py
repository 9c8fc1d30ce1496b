"""The router process: `python -I -m penstock.daemon.router.main --settings PATH`."""

import argparse
import sys
from pathlib import Path

import zmq
from pydantic import ValidationError

from ...config import handover
from ...config.model import Settings
from ...producer.records.batch_builder import SlowChecksumError, self_check
from ...runtime import logs
from ...runtime.clock import monotonic, thread_seconds
from ...runtime.notify import Notifier
from ...runtime.process import ExitCode, exit_with_parent, redirect_output_to_journal, require_assertions
from ...runtime.starts import record_start
from ..leases.journals import JournalError
from ..sessions.listening_socket import ListenError, inherited_socket, raise_descriptor_limit
from ..spool.directory import SpoolError
from ..spool.frame_store import SpoolBrokenError
from .router import Router
from .startup import start


def serve(settings: Settings, settings_path: Path) -> ExitCode:
    """Recover and run. Every expected failure becomes one log line and its exit code."""
    log = logs.get()
    try:
        self_check(thread_seconds)
        descriptors = raise_descriptor_limit()
        inherited_socket(settings.socket_path).close()
        with Notifier.from_environment() as notifier:
            started = start(settings, lambda: notifier.extend_start_timeout(monotonic(), "recovering the spool"))
    except (ListenError, SlowChecksumError) as error:
        log.critical("router_start_failed", reason=str(error))
        return ExitCode.CONFIGURATION
    except (SpoolError, JournalError, SpoolBrokenError) as error:
        log.critical("router_start_failed", reason=str(error))
        return ExitCode.SPOOL
    except OSError as error:
        log.critical("router_start_failed", reason=f"{error.filename or settings.data_dir}: {error.strerror}")
        return ExitCode.SPOOL
    try:
        router = Router(settings, settings_path, started, descriptors)
    except (OSError, zmq.ZMQError) as error:
        log.critical("router_start_failed", reason=str(error))
        return ExitCode.FAILED
    return router.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="penstock.daemon.router.main")
    parser.add_argument("--settings", type=Path, required=True, help="settings.json as the launcher wrote it")
    arguments = parser.parse_args()
    require_assertions()
    redirect_output_to_journal()
    try:
        settings = handover.read(arguments.settings)
    except (OSError, ValidationError) as error:
        logs.configure("router")
        logs.get().critical("router_start_failed", reason=f"{arguments.settings} cannot be read: {error}")
        sys.exit(ExitCode.CONFIGURATION)
    logs.configure("router", level=settings.log_level)
    for caution in settings.kafka.warnings():
        logs.get().warning("risky_setting", reason=f"kafka.{caution}")
    exit_with_parent()
    record_start(settings.runtime_dir, "router")
    sys.exit(serve(settings, arguments.settings))


if __name__ == "__main__":
    main()
