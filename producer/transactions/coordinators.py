"""Connections for transaction requests to coordinators, and for visibility checks to partition leaders. They are
separate from those for records, so that no record waits for a coordinator (TRX-9).

The transaction manager decides what to send, where and when. This module sends it and reports each result once.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from ...config.producer import ProducerSettings
from ...runtime import logs
from ...runtime.loop import Loop
from ..metadata.cluster import NO_NODE, Cluster
from ..network.connection import KafkaConnection
from ..network.least_loaded import ConnectionReadiness, least_loaded
from ..network.resolver import Resolver
from ..network.socket_options import OPERATING_SYSTEM, Security, System, control_options
from ..network.traffic import UNCOUNTED, TrafficWatch
from ..protocol.error_codes import NONE, error_name
from ..protocol.responses import ResponseOrBytes as Response
from .codec import (
    VISIBILITY_CHECK_VERSIONS,
    UnreadableError,
    decode_visibility_checks,
    encode_visibility_checks,
    read_answer,
    request_for,
    unsupported_check_result,
)
from .manager import TransactionManager
from .requests import (
    FindCoordinatorResult,
    PartitionErrorsResult,
    PartitionKey,
    TransactionRequest,
    TransactionResponse,
    version_range,
)
from .visibility import VisibilityCheck, VisibilityCheckKind

FEATURE: Final = "transaction.version"
_END_TXN: Final = 26
_PRODUCE: Final = 0
_IMPLICIT_END: Final = 5
_IMPLICIT_PRODUCE: Final = 12
"""The versions from which a request belongs to version 2 of transactions."""


class _VisibilityRequest(NamedTuple):
    """Visibility checks of one kind in one request to a leader."""

    kind: VisibilityCheckKind
    checks: tuple[VisibilityCheck, ...]


_Tag = TransactionRequest | _VisibilityRequest


class CoordinatorConnections:
    """See the module docstring. Call `tick` in every round of the loop and at `next_deadline`. `on_stale` is called
    when the known leaders are out of date."""

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
        self._request_timeout_s: Final = self._options.limits.request_timeout_s
        self._cluster = Cluster()
        self._by_node: dict[int, KafkaConnection[_Tag]] = {}
        self._unsent_request: TransactionRequest | None = None
        """Taken from the manager but not sent, because its broker has no connection yet."""
        self._unsent_to_node = NO_NODE
        """The coordinator that the unsent request is for; NO_NODE: any broker."""
        self._unsent_deadline = 0.0
        self._request_in_flight = False
        """The manager's request was sent and not answered."""
        self.last_error = ""
        """The error in the last response, or why the last connection was lost, as text; empty: no error."""
        self._unsent_checks: dict[int, list[VisibilityCheck]] = {}
        """Checks not sent yet, by leader."""

    # --- for the owner -----------------------------------------------------------------------------------------------

    def cluster_changed(self, cluster: Cluster) -> None:
        """Apply new cluster metadata: move connections to their nodes' new addresses."""
        self._cluster = cluster
        for node, connection in list(self._by_node.items()):
            address = cluster.nodes.get(node)
            if address is not None:
                connection.move_to(address.host, address.port)

    def tick(self, now: float) -> None:
        """Connect, and send the requests and checks that are due."""
        for connection in list(self._by_node.values()):
            connection.tick(now)
        self._send_requests(now)
        self._check_visibility(now)
        for connection in list(self._by_node.values()):
            at = connection.next_deadline()
            if at is not None and at <= now:
                # The connection was requested in this round, and starts at once.
                connection.tick(now)

    def next_deadline(self, now: float) -> float | None:
        """When to call `tick` next (CLOCK_MONOTONIC seconds; in the past: at once)."""
        wanted = [connection.next_deadline() for connection in self._by_node.values()]
        wanted.append(self._unsent_deadline if self._unsent_request is not None else self._manager.next_deadline())
        if self._unsent_request is not None:
            wanted += [one.throttled_until for one in self._by_node.values() if one.throttled_until > now]
        return min((at for at in wanted if at is not None), default=None)

    @property
    def in_flight(self) -> int:
        """Number of unanswered requests. Any thread may read it."""
        return sum(connection.in_flight for connection in list(self._by_node.values()))

    def close(self) -> None:
        """Close all connections; no result is reported any more."""
        for connection in self._by_node.values():
            _ = connection.close()
        self._by_node.clear()
        self._resolver.close()

    # --- requests ----------------------------------------------------------------------------------------------------

    def _send_requests(self, now: float) -> None:
        """Send the manager's next request. Continue with the one after it if a request ends at once."""
        while True:
            if self._unsent_request is None:
                if self._request_in_flight:
                    return
                self._unsent_request = self._manager.next_request(now)
                if self._unsent_request is None:
                    return
                self._unsent_deadline = now + self._request_timeout_s
            if not self._try_send(self._unsent_request, now):
                return

    def _try_send(self, ask: TransactionRequest, now: float) -> bool:
        """Send or give up the request. Returns False if it still waits for its connection."""
        connection = self._connection_for(ask, now)
        if connection is None or not connection.can_send(now):
            if connection is not None:
                connection.connect()
            if now < self._unsent_deadline:
                return False
            self._unsent_request = None
            self._manager.lost(ask, now=now, chance=self._rng())
            return True
        self._unsent_request = None
        least, greatest = version_range(ask)
        if connection.send(request_for(ask), ask, least=least, greatest=greatest, now=now) is None:
            where = f"{connection.host}:{connection.port}"
            text = f"{where} takes no version of {type(ask).__name__} from {least} to {greatest}"
            self._manager.unsupported_version(ask, text)
        else:
            self._request_in_flight = True
        return True

    def _connection_for(self, ask: TransactionRequest, now: float) -> KafkaConnection[_Tag] | None:
        target = self._manager.target(ask)
        if target is not None:
            self._unsent_to_node = target.node
            return self._connection_to(target.node, target.host, target.port)
        self._unsent_to_node = NO_NODE
        nodes = self._cluster.nodes
        if not nodes:
            return None
        standings = [(node, self._readiness(node, now)) for node in sorted(nodes)]
        node = least_loaded(standings, self._rng()).node
        return None if node is None else self._connection_to(node, nodes[node].host, nodes[node].port)

    def _readiness(self, node: int, now: float) -> ConnectionReadiness:
        connection = self._by_node.get(node)
        return ConnectionReadiness(may_connect=True) if connection is None else connection.readiness(now)

    def _connection_to(self, node: int, host: str, port: int) -> KafkaConnection[_Tag]:
        connection = self._by_node.get(node)
        if connection is None:
            connection = KafkaConnection(
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

    # --- visibility checks -------------------------------------------------------------------------------------------

    def _check_visibility(self, now: float) -> None:
        for look in self._manager.take_visibility_checks(now):
            view = self._cluster.partition(*look.part)
            if view is None or view.leader not in self._cluster.nodes:
                self._manager.visibility_check_lost(look, now=now, chance=self._rng())
                self._on_stale()
            else:
                self._unsent_checks.setdefault(view.leader, []).append(look)
        for node in list(self._unsent_checks):
            address = self._cluster.nodes.get(node)
            if address is None:
                self._checks_lost(self._unsent_checks.pop(node), now)
                continue
            connection = self._connection_to(node, address.host, address.port)
            if connection.can_send(now):
                self._send_checks(connection, self._unsent_checks.pop(node), now)
            else:
                connection.connect()

    def _send_checks(self, connection: KafkaConnection[_Tag], looks: list[VisibilityCheck], now: float) -> None:
        for kind in VisibilityCheckKind:
            of_kind = tuple(look for look in looks if look.kind is kind)
            if not of_kind:
                continue
            if not connection.can_send(now):
                self._checks_lost(of_kind, now)
                continue
            least, greatest = VISIBILITY_CHECK_VERSIONS[kind]
            epochs = {look.part: self._leader_epoch(look.part) for look in of_kind}
            request = encode_visibility_checks(kind, of_kind, epochs)
            tag = _VisibilityRequest(kind, of_kind)
            if connection.send(request, tag, least=least, greatest=greatest, now=now) is None:
                for look in of_kind:
                    answer = unsupported_check_result(look)
                    if answer is None:
                        self._manager.visibility_check_lost(look, now=now, chance=self._rng())
                    else:
                        self._manager.visibility_checked(look, answer, now=now, chance=self._rng())

    def _leader_epoch(self, part: PartitionKey) -> int:
        view = self._cluster.partition(*part)
        return -1 if view is None else view.leader_epoch

    def _checks_lost(self, looks: tuple[VisibilityCheck, ...] | list[VisibilityCheck], now: float) -> None:
        for look in looks:
            self._manager.visibility_check_lost(look, now=now, chance=self._rng())

    # --- called by connections ---------------------------------------------------------------------------------------

    def connection_ready(self, connection: KafkaConnection[_Tag]) -> None:
        """Pass the cluster's transaction version to the manager; it comes with the request versions."""
        offers_v2 = (
            connection.version_of(_END_TXN, _IMPLICIT_END, _IMPLICIT_END) is not None
            and connection.version_of(_PRODUCE, _IMPLICIT_PRODUCE, _IMPLICIT_PRODUCE) is not None
        )
        self._manager.update_features(connection.feature(FEATURE), offers_v2=offers_v2)

    def connection_answered(self, connection: KafkaConnection[_Tag], tag: _Tag, answer: Response) -> None:
        now = self._clock()
        if isinstance(tag, _VisibilityRequest):
            told = decode_visibility_checks(tag.checks, answer)
            for look in tag.checks:
                if look in told:
                    self._manager.visibility_checked(look, told[look], now=now, chance=self._rng())
                else:
                    self._manager.visibility_check_lost(look, now=now, chance=self._rng())
            if any(answered.code != 0 for answered in told.values()):
                self._on_stale()
            return
        self._request_in_flight = False
        try:
            read = read_answer(tag, answer)
        except UnreadableError as error:
            self._manager.lost(tag, now=now, chance=self._rng())
            connection.disconnect(f"{connection.host}:{connection.port}: {error}")
            return
        self.last_error = _error_text(tag, read)
        self._manager.answered(tag, read, now=now, chance=self._rng())

    def connection_lost(self, connection: KafkaConnection[_Tag], tags: list[_Tag], reason: str) -> None:
        now = self._clock()
        node = next(node for node, one in self._by_node.items() if one is connection)
        logs.get().info("coordinator_disconnected", node=node, reason=reason, requests=len(tags))
        self.last_error = reason
        for tag in tags:
            if isinstance(tag, _VisibilityRequest):
                self._checks_lost(tag.checks, now)
            else:
                self._request_in_flight = False
                self._manager.lost(tag, now=now, chance=self._rng())
        if node in self._unsent_checks:
            self._checks_lost(self._unsent_checks.pop(node), now)
            self._on_stale()
        if self._unsent_request is not None and self._unsent_to_node == node:
            ask, self._unsent_request = self._unsent_request, None
            self._manager.lost(ask, now=now, chance=self._rng())


def _error_text(ask: TransactionRequest, answer: TransactionResponse) -> str:
    """The first error in a response as text; empty: no error."""
    codes = answer.codes.values() if isinstance(answer, PartitionErrorsResult) else [answer.code]
    code = next((code for code in codes if code != NONE), NONE)
    if code == NONE:
        return ""
    said = answer.message if isinstance(answer, FindCoordinatorResult) and answer.message else ""
    return f"{type(ask).__name__} is answered with {error_name(code)}{said and f': {said}'}"
