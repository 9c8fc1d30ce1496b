"""Run a command that ends when whoever started it ends: `python -I -S tied.py PARENT_PID COMMAND …`.

A test run that is killed leaves no broker behind. A program of its own, because a function between fork and exec is not
safe in a process with threads, and librdkafka brings threads. The tie holds to the *thread* that started it (prctl(2),
PR_SET_PDEATHSIG), so only main threads start processes.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent = int(sys.argv[1])
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"tied.py: prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("tied.py: the parent has gone")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
