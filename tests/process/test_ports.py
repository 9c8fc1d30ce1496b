"""The ports that tests give to their servers: a server that is dead for a while finds its own free."""

import socket
import subprocess
import sys

import pytest

from tests.harness.ports import BLOCK, PORTS, free_ports
from tests.harness.processes import REPOSITORY

_ASK = "from tests.harness.ports import free_ports; print(*free_ports(3), flush=True); input()"


def test_two_runs_never_choose_the_same_ports() -> None:
    ours = free_ports(3)
    asked = [sys.executable, "-c", _ASK]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as other:
        assert other.stdout is not None
        theirs = [int(port) for port in other.stdout.readline().split()]
        assert len({(port - PORTS.start) // BLOCK for port in ours}) == 1
        assert len({(port - PORTS.start) // BLOCK for port in theirs}) == 1
        assert (ours[0] - PORTS.start) // BLOCK != (theirs[0] - PORTS.start) // BLOCK
        _ = other.communicate(b"\n")


def test_a_port_comes_again_when_all_others_have_and_not_while_somebody_holds_it() -> None:
    [ours] = free_ports(1)
    rest = [free_ports(1)[0] for _ in range(BLOCK // 2)]
    assert ours not in rest
    assert len(set(rest)) == len(rest)
    with socket.socket() as held:
        held.bind(("127.0.0.1", ours))
        assert ours not in free_ports(BLOCK // 2)
        with pytest.raises(RuntimeError, match="free ports are wanted"):
            _ = free_ports(BLOCK - 1)
    assert ours in free_ports(BLOCK // 2) + free_ports(BLOCK // 2)
