"""Start-up steps of every daemon process: exit with the parent, refuse `python -O`, write output to the journal.

Exit codes are messages to the supervisor and to operators; `ExitCode` names them.
"""

import ctypes
import os
import signal
import sys
from enum import IntEnum
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
JOURNAL_FD: Final = 4
PARENT_VARIABLE: Final = "PENSTOCK_LAUNCHER_PID"


class ExitCode(IntEnum):
    """Exit codes of commands and processes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 78
    SPOOL = 74
    PARENT_GONE = 70
    PEER_GONE = 71
    INVARIANT_VIOLATED = 72


def exit_with_parent() -> None:
    """Have the kernel send SIGTERM when the launcher ends. The environment holds its pid: in a container it may be 1.

    Exits with `ExitCode.PARENT_GONE` if the launcher has already ended.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    launcher = os.environ.get(PARENT_VARIABLE)
    if launcher is not None and os.getppid() != int(launcher):
        sys.exit(ExitCode.PARENT_GONE)


def has_lost_parent() -> bool:
    """Return whether the launcher that `PARENT_VARIABLE` names has ended."""
    launcher = os.environ.get(PARENT_VARIABLE)
    return launcher is not None and os.getppid() != int(launcher)


def redirect_output_to_journal() -> None:
    """Write standard output and error directly to the journal (descriptor 4), if the launcher opened it there."""
    if os.environ.get("PENSTOCK_JOURNAL") == "1":
        os.dup2(JOURNAL_FD, 1)
        os.dup2(JOURNAL_FD, 2)


def require_assertions() -> None:
    """Exit if assertions are disabled: they guard the identity rules, and without them nothing may be sent."""
    if sys.flags.optimize:
        sys.stderr.write(
            "penstock does not run under python -O: its assertions guard your records. Start it without -O.\n"
        )
        sys.exit(ExitCode.CONFIGURATION)
