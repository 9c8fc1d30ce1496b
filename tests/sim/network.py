"""A network between one producer and a cluster of strict brokers, on a clock that goes from event to event.

Sockets of the producer's real connections end here. Bytes arrive in order, late, in part, or not at all; nothing arrives twice.
A broker's end serves one request after the other, as brokers do: what was read is carried out though its client is gone, what
was not read is lost with the connection.
"""

import errno
import heapq
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from penstock.broker.cluster.node import BrokerNodeLimits, PeerNode
from penstock.broker.cluster.responses import DelayedResponse
from penstock.broker.log.ports import BrokerTime
from penstock.broker.replication.replicated_cluster import ClusterTiming, ReplicatedCluster
from penstock.broker.requests.dispatch import ReceivedRequest, RequestReply, decode, with_pending
from penstock.broker.storage import MemoryLogStore
from penstock.runtime.loop import READ, WRITE

from tests.fakes.fake_net import FakeNames
from tests.fakes.segments import NOW_MS

NODES: Final = (1, 2, 3)
PEERS: Final = tuple(PeerNode(node, f"10.0.0.{node}", 9092) for node in NODES)
LENGTH: Final = struct.Struct(">i")
LOOK_S: Final = 0.1
ANY_BYTES: Final = 1 << 40


class SimLoop:
    """In place of the producer's loop: knows who watches what and what is to be done after every event."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callable[[int], None]] = {}
        self.upkeep: list[Callable[[float], float | None]] = []
        self.stopped = False

    def add(self, fd: int, _events: int, callback: Callable[[int], None]) -> None:
        self.callbacks[fd] = callback

    def modify(self, fd: int, _events: int) -> None:
        assert fd in self.callbacks

    def remove(self, fd: int) -> None:
        _ = self.callbacks.pop(fd, None)

    def add_upkeep(self, upkeep: Callable[[float], float | None]) -> None:
        self.upkeep.append(upkeep)

    def add_moved_bytes(self, nbytes: int) -> None:
        """A real one rests a little while much is moved."""

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.callbacks.clear()


class Wire:
    """One connection: what is on its way in both directions, and the broker's end."""

    def __init__(self, net: "Network", socket: "SimSocket", node: int) -> None:
        self.net = net
        self.socket = socket
        self.node = node
        self.served = True
        """The broker's end is open."""
        self.deaf = False
        """Nothing reaches the producer any more."""
        self.left = ANY_BYTES
        """How many bytes still reach the broker."""
        self.waiting: tuple[ReceivedRequest, float] | None = None
        self._inbox = bytearray()
        self._muted_until = 0.0
        self._up_at = 0.0
        self._down_at = 0.0

    # --- towards the broker ------------------------------------------------------------------------------------------

    def carry(self, data: bytes) -> None:
        self._up_at = max(self._up_at, self.net.now + self.net.latency(self.node))
        self.net.at(self._up_at, lambda: self._arrive(data))

    def hang_up(self) -> None:
        """The producer reset the connection; the broker hears of it behind what is on its way."""
        self.deaf = True
        self._up_at = max(self._up_at, self.net.now + self.net.latency(self.node))
        self.net.at(self._up_at, self._reset)

    def _arrive(self, data: bytes) -> None:
        if not self.served:
            return
        if self.node in self.net.silent:
            # Sent again until it gets through, as long as the producer's end is open.
            if not self.socket.closed:
                self.net.unsilenced.append(lambda: self._arrive(data))
            return
        self._inbox += data[: self.left]
        self.left = max(0, self.left - len(data))
        self.pump()

    def _reset(self) -> None:
        if self.node in self.net.silent:
            self.net.unsilenced.append(self._reset)
            return
        self.end()

    def end(self) -> None:
        """Nothing is read or answered here any more."""
        self.served = False
        self.waiting = None
        self._inbox.clear()
        self.net.wires.discard(self)

    def cut(self) -> None:
        """The network ends the connection: some of what is on its way still arrives, no answer does."""
        rng = self.net.rng
        self.deaf = True
        self.left = rng.choice((0, rng.randrange(1, 1500), ANY_BYTES))
        self.net.after(rng.choice((0.0, 0.05, 0.5)), self.socket.break_off)
        self._up_at = max(self._up_at, self.net.now + rng.choice((0.0, 0.2, 3.0)))
        self.net.at(self._up_at, self.end)

    # --- the broker --------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Serve what came, one request after the other."""
        net = self.net
        while self.served and self.waiting is None and net.now >= self._muted_until and net.cluster.serves(self.node):
            if len(self._inbox) < LENGTH.size:
                return
            end = LENGTH.size + LENGTH.unpack_from(self._inbox)[0]
            if len(self._inbox) < end:
                return
            data = bytes(self._inbox[LENGTH.size : end])
            del self._inbox[:end]
            self._serve(decode(data, arrived=net.now))

    def look(self) -> None:
        """See whether what waits can be answered."""
        if self.waiting is not None and self.net.cluster.serves(self.node):
            request, _ = self.waiting
            self.waiting = None
            self._serve(request)
            self.pump()

    def _serve(self, request: ReceivedRequest) -> None:
        self.net.served += 1
        outcome = self.net.cluster.apply(self.node, request, self.net.moment)
        if isinstance(outcome, DelayedResponse):
            self.waiting = (with_pending(request, outcome), outcome.deadline)
            return
        assert isinstance(outcome, RequestReply)
        assert outcome.data, outcome.why
        if outcome.mute_s:
            self._muted_until = self.net.now + outcome.mute_s
            self.net.at(self._muted_until, self.pump)
        self._down_at = max(self._down_at, self.net.now + self.net.latency(self.node))
        self.net.at(self._down_at, lambda: self._deliver(outcome.data))

    def _deliver(self, data: bytes) -> None:
        if self.node in self.net.silent:
            self.net.unsilenced.append(lambda: self._deliver(data))
        elif not self.deaf:
            self.socket.inbox += data
            self.socket.tell(READ)


class SimSocket:
    """The producer's end, as a `Connection` uses it."""

    def __init__(self, net: "Network", number: int) -> None:
        self.net = net
        self.number = number
        self.inbox = bytearray()
        self.connected = False
        self.closed = False
        self.broken = False
        self.error = 0
        self.wire: Wire | None = None

    def setblocking(self, _blocking: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *_option: object) -> None:
        """There is nothing to set."""

    def fileno(self) -> int:
        return self.number

    def connect_ex(self, address: tuple[str, int]) -> int:
        node = int(str(address[0]).rpartition(".")[2])
        self.net.after(self.net.latency(node), lambda: self._reach(node))
        return errno.EINPROGRESS

    def _reach(self, node: int) -> None:
        if node in self.net.silent:
            self.net.unsilenced.append(lambda: self._reach(node))
        elif not self.closed:
            self.connected = self.net.cluster.slots[node].node is not None
            self.error = 0 if self.connected else errno.ECONNREFUSED
            if self.connected:
                self.wire = Wire(self.net, self, node)
                self.net.wires.add(self.wire)
            self.tell(WRITE)

    def getsockopt(self, *_option: int) -> int:
        return self.error

    def getpeername(self) -> object:
        if not self.connected:
            raise OSError(errno.ENOTCONN, "not connected")
        return ("a broker", 9092)

    def recv_into(self, space: memoryview) -> int:
        if self.broken:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        if not self.inbox:
            raise BlockingIOError
        count = min(len(space), len(self.inbox))
        space[:count] = self.inbox[:count]
        del self.inbox[:count]
        return count

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        if self.broken:
            raise BrokenPipeError(errno.EPIPE, "reset")
        assert self.wire is not None
        data = b"".join(buffers)
        self.wire.carry(data)
        return len(data)

    def close(self) -> None:
        self.closed = True
        if self.wire is not None:
            self.wire.hang_up()

    def break_off(self) -> None:
        """The end of the connection is heard of here."""
        if not self.closed and not self.broken:
            self.broken = True
            self.tell(READ)

    def tell(self, events: int) -> None:
        callback = self.net.loop.callbacks.get(self.number)
        if callback is not None:
            callback(events)


class Network:
    """Clock, events, cluster, and everything between it and the producer."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = 1000.0
        self.loop = SimLoop()
        self.names = FakeNames()
        self.names.known = {peer.host: [peer.host] for peer in PEERS}
        self.silent: set[int] = set()
        """Nodes to and from which nothing gets through."""
        self.unsilenced: list[Callable[[], None]] = []
        self.slow: dict[int, float] = {}
        self.wires: set[Wire] = set()
        self.served = 0
        self.cluster = ReplicatedCluster(
            PEERS,
            log_store=MemoryLogStore(),
            moment=self.moment,
            limits=BrokerNodeLimits(default_replicas=3),
            timing=ClusterTiming(session_s=3.0, lag_s=4.0),
        )
        self._seen = -1
        self._sockets = 0
        self._count = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.after(LOOK_S, self._look)

    def renew_loop(self) -> None:
        """Another producer begins; what still happens to the one before is not heard of."""
        self.loop = SimLoop()

    @property
    def wall_ms(self) -> int:
        return NOW_MS + round((self.now - 1000.0) * 1000)

    @property
    def moment(self) -> BrokerTime:
        return BrokerTime(self.now, self.wall_ms)

    def open(self, _family: int) -> SimSocket:
        self._sockets += 1
        return SimSocket(self, 1000 + self._sockets)

    def latency(self, node: int) -> float:
        """How long some bytes take (seconds)."""
        usual = self.rng.choice((0.001, 0.002, 0.004, 0.02))
        return usual + self.rng.random() * self.slow.get(node, 0.0)

    # --- time --------------------------------------------------------------------------------------------------------

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, event))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self.at(self.now + seconds, event)

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen up to a moment, or until it is over. Says whether it was."""
        deadline: float | None = self.now
        while not is_over():
            when = self._events[0][0] if deadline is None else min(self._events[0][0], deadline)
            if when > until:
                self.now = until
                return False
            # A round takes time, so that nobody goes round for ever within one moment.
            self.now = max(self.now + 0.0001, when)
            while self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            self.settle()
            wanted = [at for at in [upkeep(self.now) for upkeep in self.loop.upkeep] if at is not None]
            deadline = min(wanted, default=None)
        return True

    def settle(self) -> None:
        """Requests that wait look again when something has changed."""
        while self._seen != self.cluster.changes:
            self._seen = self.cluster.changes
            for wire in self._in_order():
                wire.look()

    def _look(self) -> None:
        self.after(LOOK_S, self._look)
        self.cluster.upkeep(self.moment)
        for wire in self._in_order():
            if wire.waiting is not None and wire.waiting[1] <= self.now:
                wire.look()

    def _in_order(self) -> list[Wire]:
        """Sets of objects have another order in every run."""
        return sorted(self.wires, key=lambda wire: wire.socket.number)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def wires_of(self, node: int) -> list[Wire]:
        return [wire for wire in self._in_order() if wire.node == node]

    def ended(self, node: int) -> None:
        """A node's process is gone, and with it its connections."""
        for wire in self.wires_of(node):
            wire.end()
            self.after(self.latency(node), wire.socket.break_off)

    def resumed(self, node: int) -> None:
        """A node goes on with what came while it was stopped."""
        for wire in self.wires_of(node):
            wire.look()
            wire.pump()

    def unsilence(self, node: int) -> None:
        """Everything gets through again."""
        self.silent.discard(node)
        kept, self.unsilenced = self.unsilenced, []
        for one in kept:
            one()
