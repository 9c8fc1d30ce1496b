"""Run a command with a descriptor at 3, tied to its parent: `python -I -S at_three.py PARENT_PID DESCRIPTOR COMMAND …`."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie, move the descriptor, become the command."""
    parent, descriptor = int(sys.argv[1]), int(sys.argv[2])
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit("at_three.py: prctl failed")
    if os.getppid() != parent:
        sys.exit("at_three.py: the parent has gone")
    if descriptor == 3:
        os.set_inheritable(3, True)
    else:
        os.dup2(descriptor, 3, inheritable=True)
        os.close(descriptor)
    os.execvp(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
