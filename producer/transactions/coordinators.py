"""Connections for what transactions ask: coordinators, and leaders that tell whether a commit is visible. Beside those that carry
records, so that no record waits for a coordinator (TRX-9).

What is asked, of whom and when is the transaction manager's; here it is sent, decoded, and told how it ended, once.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from ...config.producer import ProducerSettings
from ...runtime import logs
from ...runtime.loop import Loop
from ..metadata.cluster import NO_NODE, Cluster
from ..network.connection import Connection
from ..network.least_loaded import Standing, least_loaded
from ..network.resolver import Resolver
from ..network.socket_options import OPERATING_SYSTEM, Security, System, control_options
from ..network.traffic import UNCOUNTED, TrafficWatch
from ..protocol.error_codes import NONE, error_name
from ..protocol.responses import Answer as Response
from .codec import LOOK_VERSIONS, UnreadableError, look_refused, look_request, read_answer, read_looks, request_for
from .manager import TransactionManager
from .requests import Answer, Ask, CoordinatorTold, Part, PartsTold, versions
from .visibility import Look, LookKind

FEATURE: Final = "transaction.version"
_END_TXN: Final = 26
_PRODUCE: Final = 0
_IMPLICIT_END: Final = 5
_IMPLICIT_PRODUCE: Final = 12
"""The versions from which on a request belongs to version 2 of transactions."""


class _Looking(NamedTuple):
    """Looks of one kind on their way to a leader."""

    kind: LookKind
    looks: tuple[Look, ...]


_Tag = Ask | _Looking


class Coordinators:
    """See the module. Call `tick` in every round of the loop and wake up for `next_deadline`. `on_stale`: what is known of leaders
    is old."""

    def __init__(
        self,
        loop: Loop,
        settings: ProducerSettings,
        manager: TransactionManager,
        *,
        on_stale: Callable[[], None],
        rng: Callable[[], float],
        watch: TrafficWatch | None = None,
        security: Security | None = None,
        system: System = OPERATING_SYSTEM,
    ) -> None:
        self._loop: Final = loop
        self._manager: Final = manager
        self._on_stale: Final = on_stale
        self._rng: Final = rng
        self._watch: Final = watch
        self._clock: Final = system.now
        self._resolver: Final = Resolver(loop)
        self._options: Final = control_options(settings, security=security)._replace(system=system)
        self._patience_s: Final = self._options.limits.request_timeout_s
        self._cluster = Cluster()
        self._by_node: dict[int, Connection[_Tag]] = {}
        self._waiting: Ask | None = None
        """Taken from the manager, and not sent: its broker has no connection yet."""
        self._waiting_for = NO_NODE
        """The coordinator it waits for; NO_NODE: any broker."""
        self._give_up_at = 0.0
        self._asked = False
        """The manager's ask is out."""
        self.problem = ""
        """What the last answer refused, or why the last connection ended, in words; empty: nothing is wrong."""
        self._looks: dict[int, list[Look]] = {}
        """Not sent yet, by the leader that is to be asked."""

    # --- for the owner -----------------------------------------------------------------------------------------------

    def follow(self, cluster: Cluster) -> None:
        """Nodes or leaders are others."""
        self._cluster = cluster
        for node, connection in list(self._by_node.items()):
            address = cluster.nodes.get(node)
            if address is not None:
                connection.move_to(address.host, address.port)

    def tick(self, now: float) -> None:
        """Connect, ask and look, as far as it is due."""
        for connection in list(self._by_node.values()):
            connection.tick(now)
        self._ask(now)
        self._look(now)
        for connection in list(self._by_node.values()):
            at = connection.next_deadline()
            if at is not None and at <= now:
                # It was asked for just now, and begins at once.
                connection.tick(now)

    def next_deadline(self, now: float) -> float | None:
        """When `tick` wants to be called (CLOCK_MONOTONIC seconds; in the past: at once)."""
        wanted = [connection.next_deadline() for connection in self._by_node.values()]
        wanted.append(self._give_up_at if self._waiting is not None else self._manager.next_deadline())
        if self._waiting is not None:
            wanted += [one.throttled_until for one in self._by_node.values() if one.throttled_until > now]
        return min((at for at in wanted if at is not None), default=None)

    @property
    def in_flight(self) -> int:
        """Requests without an answer; any thread may ask."""
        return sum(connection.in_flight for connection in list(self._by_node.values()))

    def close(self) -> None:
        """End all connections; nothing is told any more."""
        for connection in self._by_node.values():
            _ = connection.close()
        self._by_node.clear()
        self._resolver.close()

    # --- asks --------------------------------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        """Send what the manager asks next; more than one, where one ends at once."""
        while True:
            if self._waiting is None:
                if self._asked:
                    return
                self._waiting = self._manager.next_ask(now)
                if self._waiting is None:
                    return
                self._give_up_at = now + self._patience_s
            if not self._try_ask(self._waiting, now):
                return

    def _try_ask(self, ask: Ask, now: float) -> bool:
        """True: it is not waiting any more."""
        connection = self._connection_for(ask, now)
        if connection is None or not connection.has_room(now):
            if connection is not None:
                connection.connect()
            if now < self._give_up_at:
                return False
            self._waiting = None
            self._manager.lost(ask, now=now, chance=self._rng())
            return True
        self._waiting = None
        least, greatest = versions(ask)
        if connection.send(request_for(ask), ask, least=least, greatest=greatest, now=now) is None:
            where = f"{connection.host}:{connection.port}"
            text = f"{where} takes no version of {type(ask).__name__} from {least} to {greatest}"
            self._manager.refused_version(ask, text)
        else:
            self._asked = True
        return True

    def _connection_for(self, ask: Ask, now: float) -> Connection[_Tag] | None:
        target = self._manager.target(ask)
        if target is not None:
            self._waiting_for = target.node
            return self._to(target.node, target.host, target.port)
        self._waiting_for = NO_NODE
        nodes = self._cluster.nodes
        if not nodes:
            return None
        standings = [(node, self._standing(node, now)) for node in sorted(nodes)]
        node = least_loaded(standings, self._rng()).node
        return None if node is None else self._to(node, nodes[node].host, nodes[node].port)

    def _standing(self, node: int, now: float) -> Standing:
        connection = self._by_node.get(node)
        return Standing(may_connect=True) if connection is None else connection.standing(now)

    def _to(self, node: int, host: str, port: int) -> Connection[_Tag]:
        connection = self._by_node.get(node)
        if connection is None:
            connection = Connection(
                self._loop,
                self._resolver,
                host,
                port,
                options=self._options,
                owner=self,
                rng=self._rng,
                traffic=UNCOUNTED if self._watch is None else self._watch.traffic(node, now=self._clock()),
            )
            self._by_node[node] = connection
        else:
            connection.move_to(host, port)
        return connection

    # --- looks -------------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        for look in self._manager.take_looks(now):
            view = self._cluster.partition(*look.part)
            if view is None or view.leader not in self._cluster.nodes:
                self._manager.look_lost(look, now=now, chance=self._rng())
                self._on_stale()
            else:
                self._looks.setdefault(view.leader, []).append(look)
        for node in list(self._looks):
            address = self._cluster.nodes.get(node)
            if address is None:
                self._lose_looks(self._looks.pop(node), now)
                continue
            connection = self._to(node, address.host, address.port)
            if connection.has_room(now):
                self._send_looks(connection, self._looks.pop(node), now)
            else:
                connection.connect()

    def _send_looks(self, connection: Connection[_Tag], looks: list[Look], now: float) -> None:
        for kind in LookKind:
            of_kind = tuple(look for look in looks if look.kind is kind)
            if not of_kind:
                continue
            if not connection.has_room(now):
                self._lose_looks(of_kind, now)
                continue
            least, greatest = LOOK_VERSIONS[kind]
            epochs = {look.part: self._leader_epoch(look.part) for look in of_kind}
            request = look_request(kind, of_kind, epochs)
            tag = _Looking(kind, of_kind)
            if connection.send(request, tag, least=least, greatest=greatest, now=now) is None:
                for look in of_kind:
                    answer = look_refused(look)
                    if answer is None:
                        self._manager.look_lost(look, now=now, chance=self._rng())
                    else:
                        self._manager.looked(look, answer, now=now, chance=self._rng())

    def _leader_epoch(self, part: Part) -> int:
        view = self._cluster.partition(*part)
        return -1 if view is None else view.leader_epoch

    def _lose_looks(self, looks: tuple[Look, ...] | list[Look], now: float) -> None:
        for look in looks:
            self._manager.look_lost(look, now=now, chance=self._rng())

    # --- told by connections -----------------------------------------------------------------------------------------

    def connection_ready(self, connection: Connection[_Tag]) -> None:
        """The cluster's version of transactions is told with the versions of requests."""
        offers_v2 = (
            connection.version_of(_END_TXN, _IMPLICIT_END, _IMPLICIT_END) is not None
            and connection.version_of(_PRODUCE, _IMPLICIT_PRODUCE, _IMPLICIT_PRODUCE) is not None
        )
        self._manager.features(connection.feature(FEATURE), offers_v2=offers_v2)

    def connection_answered(self, connection: Connection[_Tag], tag: _Tag, answer: Response) -> None:
        now = self._clock()
        if isinstance(tag, _Looking):
            told = read_looks(tag.looks, answer)
            for look in tag.looks:
                if look in told:
                    self._manager.looked(look, told[look], now=now, chance=self._rng())
                else:
                    self._manager.look_lost(look, now=now, chance=self._rng())
            if any(answered.code != 0 for answered in told.values()):
                self._on_stale()
            return
        self._asked = False
        try:
            read = read_answer(tag, answer)
        except UnreadableError as error:
            self._manager.lost(tag, now=now, chance=self._rng())
            connection.disconnect(f"{connection.host}:{connection.port}: {error}")
            return
        self.problem = _trouble(tag, read)
        self._manager.answered(tag, read, now=now, chance=self._rng())

    def connection_lost(self, connection: Connection[_Tag], tags: list[_Tag], reason: str) -> None:
        now = self._clock()
        node = next(node for node, one in self._by_node.items() if one is connection)
        logs.get().info("coordinator_lost", node=node, reason=reason, requests=len(tags))
        self.problem = reason
        for tag in tags:
            if isinstance(tag, _Looking):
                self._lose_looks(tag.looks, now)
            else:
                self._asked = False
                self._manager.lost(tag, now=now, chance=self._rng())
        if node in self._looks:
            self._lose_looks(self._looks.pop(node), now)
            self._on_stale()
        if self._waiting is not None and self._waiting_for == node:
            ask, self._waiting = self._waiting, None
            self._manager.lost(ask, now=now, chance=self._rng())


def _trouble(ask: Ask, answer: Answer) -> str:
    """What an answer refuses, in words; empty: nothing."""
    codes = answer.codes.values() if isinstance(answer, PartsTold) else [answer.code]
    code = next((code for code in codes if code != NONE), NONE)
    if code == NONE:
        return ""
    said = answer.said if isinstance(answer, CoordinatorTold) and answer.said else ""
    return f"{type(ask).__name__} is answered with {error_name(code)}{said and f': {said}'}"
