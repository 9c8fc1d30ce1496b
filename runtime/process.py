"""What every process of the daemon does first: stay tied to its parent, refuse a dangerous interpreter, take the journal.

Exit codes are messages to the supervisor and to people; they are named here, once.
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
    """Why a process ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 78
    SPOOL = 74
    PARENT_GONE = 70
    PEER_GONE = 71
    INVARIANT_VIOLATED = 72


def exit_with_parent() -> None:
    """End when the launcher ends. Its pid comes in the environment, because in a container it may be 1.

    Exits with `ExitCode.PARENT_GONE` when the parent is already another process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    launcher = os.environ.get(PARENT_VARIABLE)
    if launcher is not None and os.getppid() != int(launcher):
        sys.exit(ExitCode.PARENT_GONE)


def has_lost_parent() -> bool:
    """The launcher that `PARENT_VARIABLE` names has ended."""
    launcher = os.environ.get(PARENT_VARIABLE)
    return launcher is not None and os.getppid() != int(launcher)


def redirect_output_to_journal() -> None:
    """Write standard output and error straight to the journal (descriptor 4), where the launcher put it there."""
    if os.environ.get("PENSTOCK_JOURNAL") == "1":
        os.dup2(JOURNAL_FD, 1)
        os.dup2(JOURNAL_FD, 2)


def require_assertions() -> None:
    """Assertions guard the identity rules: without them nothing may be sent."""
    if sys.flags.optimize:
        sys.stderr.write(
            "penstock does not run under python -O: its assertions guard your records. Start it without -O.\n"
        )
        sys.exit(ExitCode.CONFIGURATION)
