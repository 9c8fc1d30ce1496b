"""A process's metadata client. It queries topics and leaders, the producer id, and the few topic and broker settings
that affect sending, over one control connection at a time.

`refresh.py` decides what to query, from which broker and when; `cache.py` stores the results.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from kafka.protocol.admin.configs import DescribeConfigsResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse

from ...config.bootstrap import parse_bootstrap
from ...config.producer import ProducerSettings
from ...runtime import logs
from ...runtime.loop import Loop
from ..network.addresses import AddressRotation
from ..network.connection import KafkaConnection
from ..network.resolver import Resolver
from ..network.socket_options import OPERATING_SYSTEM, Security, System, control_options
from ..network.traffic import UNCOUNTED, TrafficWatch
from ..protocol.backoff import Backoff
from ..protocol.error_codes import ControlErrorClass, classify_control_error, error_name
from ..protocol.responses import ResponseOrBytes
from .cache import CacheOptions, MetadataCache, MetadataMerged, MetadataRejected, RebootstrapRequested
from .cluster import BrokerAddress, Cluster, ClusterChange, TopicView, read_metadata
from .describe_configs import (
    TopicSettings,
    broker_config_request,
    producer_id_expiration_ms,
    topic_config_request,
    topic_settings_of,
)
from .refresh import (
    BrokerConfigQuery,
    BrokerTarget,
    ControlQuery,
    MetadataUpdaterLimits,
    ProducerIdQuery,
    TopicConfigQuery,
    TopicMetadataQuery,
)

_METADATA_LEAST: Final = 4
"""Below version 4 a broker with topic auto-creation enabled creates every topic that is queried."""
_NO_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1
_PERMISSION_BACKOFF: Final = Backoff(1.0, 30.0)
_LOGGED_MAX: Final = 100
_UNREADABLE: Final = (AttributeError, TypeError, ValueError)


class Metadata:
    """A process's view of the cluster, refreshed from the brokers.

    Call `tick` in every round of the loop and wake up for `next_deadline`. Callbacks come from `tick`, from the loop's
    events, and from `apply_leader_hint`: `on_change` if something is new, `on_update` after every Metadata response,
    `on_lost` when a connection ended, with the reason and whether authentication failed and every broker has failed.
    `in_use` returns the topics that are not idle although not wanted lately. `topic_settings` False: do not query the
    settings of topics.
    """

    def __init__(
        self,
        loop: Loop,
        settings: ProducerSettings,
        *,
        on_change: Callable[[ClusterChange], None],
        rng: Callable[[], float],
        on_producer_id: Callable[[int, int], None] | None = None,
        on_producer_id_refused: Callable[[int], None] | None = None,
        on_update: Callable[[], None] | None = None,
        on_lost: Callable[[str, bool], None] | None = None,
        in_use: Callable[[], AbstractSet[str]] = frozenset,
        topic_settings: bool = True,
        watch: TrafficWatch | None = None,
        security: Security | None = None,
        resolver: Resolver | None = None,
        system: System = OPERATING_SYSTEM,
    ) -> None:
        self.producer_id_expiration_ms: int | None = None
        """`producer.id.expiration.ms` of the brokers; None: unknown."""
        self._loop = loop
        self._settings = settings
        self._on_change = on_change
        self._on_update = on_update
        self._on_lost = on_lost
        self._on_producer_id = on_producer_id
        self._on_producer_id_refused = on_producer_id_refused
        self._rng = rng
        self._options = control_options(settings, security=security)._replace(system=system)
        self._clock = system.now
        self._watch = watch
        self._owns_resolver = resolver is None
        self._resolver = Resolver(loop) if resolver is None else resolver
        self._log = logs.get()
        self._connection: KafkaConnection[ControlQuery] | None = None
        self._turns: dict[tuple[str, int], AddressRotation] = {}
        """By host and port. The rotation over a name's addresses outlives the connection."""
        self._problems: dict[str, str] = {}
        self._logged_problems: dict[str, set[str]] = {}
        """Problems logged since the last success, by subject."""
        self._topic_settings: dict[str, TopicSettings] = {}
        options = CacheOptions(settings.allow_auto_create_topics, topic_settings, in_use)
        bootstrap = parse_bootstrap(settings.bootstrap_servers)
        self._cache = MetadataCache(updater_limits(settings), bootstrap, options, now=self._clock())
        self._updater = self._cache.updater

    # --- methods for the owner ---------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster:
        """The newest snapshot. Safe to read from any thread."""
        return self._cache.cluster

    def want(self, topic: str) -> None:
        """Keep this topic's metadata; the next `tick` queries it if it is new. Cheap to repeat; each call resets its
        idle time."""
        self._cache.want(topic, self._clock())

    def request(self, topic: str) -> None:
        """A caller waits for this topic and needs newer metadata (MDW-4)."""
        self._updater.request(topic, self._clock())

    def forget(self, topic: str) -> None:
        """Drop the topic: it is no longer used."""
        self._cache.forget(topic)
        _ = self._topic_settings.pop(topic, None)

    def refresh(self) -> None:
        """Something is stale: query everything as soon as the backoff allows."""
        self._updater.refresh(self._clock())

    def topic(self, name: str) -> TopicView | None:
        """The topic's metadata; None if nothing is known, or none of its partitions yet."""
        return self._cache.topic(name)

    def topic_error(self, name: str) -> str | None:
        """Kafka's name of the error that the brokers report for the topic. "Unknown topic" counts from the second
        response on, and never if brokers may create the topic."""
        return self._cache.topic_error(name)

    def topic_settings(self, name: str) -> TopicSettings | None:
        """A topic's settings; None if not yet received, or not permitted."""
        return self._topic_settings.get(name)

    def seed(self, topic: str, topic_id: bytes | None, leader_epochs: Mapping[int, int]) -> None:
        """Restore leader epochs recorded by an earlier process: older epochs are ignored (HO-16)."""
        self._cache.seed(topic, topic_id, leader_epochs)

    def apply_leader_hint(
        self, topic: str, index: int, leader: int, leader_epoch: int, address: BrokerAddress | None = None
    ) -> bool:
        """Apply the new leader named in a Produce response. Returns True if it was newer and `on_change` was called.
        Metadata is refreshed in any case."""
        change = self._cache.apply_leader_hint(topic, index, leader, leader_epoch, address, self._clock())
        if change:
            self._on_change(change)
        return bool(change)

    def request_producer_id(self) -> None:
        """Query for a producer id until one is granted. `on_producer_id` receives the id and its epoch."""
        self._updater.request_producer_id(self._clock())

    @property
    def problems(self) -> Mapping[str, str]:
        """Texts of the current problems, by subject (`brokers`, `producer_id`, `settings`). Empty if there are none."""
        return self._problems

    @property
    def connected_to(self) -> BrokerTarget | None:
        """The broker of the control connection; None if it is not ready."""
        connection = self._connection
        return self._updater.current if connection is not None and connection.ready else None

    def reachable_since(self, at: float) -> bool | None:
        """True: a broker is connected. False: none is, and every broker was tried and failed at `at` or later
        (CLOCK_MONOTONIC seconds). None: not known yet."""
        if self.connected_to is not None:
            return True
        return False if self._updater.all_failed_since(at) else None

    def offers(self, api_key: int) -> bool | None:
        """Whether the connected broker supports version 0 of an API; None if no broker is connected."""
        connection = self._connection
        ready = connection is not None and connection.ready
        return connection.version_of(api_key, 0, 0) is not None if ready and connection is not None else None

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return 0 if self._connection is None else self._connection.in_flight

    @property
    def round_trip_us(self) -> int:
        return 0 if self._connection is None else self._connection.round_trip_us

    def tick(self, now: float) -> None:
        """Connect and send queries if they are due."""
        if self._connection is not None:
            self._connection.tick(now)
        connection = self._connection
        if connection is not None and self._updater.leave_if_throttled(
            connection.readiness(now), connection.throttled_until, now
        ):
            self._drop(now)
        if self._connection is None:
            target = self._updater.target(now, self._rng())
            if target is not None:
                self._connect(target, now)
        connection = self._connection
        if connection is not None and connection.can_send(now):
            for ask in self._updater.due_queries(now):
                if self._connection is connection:
                    self._send(connection, ask, now)
                else:
                    self._updater.queries_failed([ask], now, self._rng())

    def next_deadline(self) -> float | None:
        """When to call `tick` next (CLOCK_MONOTONIC seconds; a past time means at once)."""
        connection = self._connection
        if connection is None:
            return self._updater.next_deadline(connected=False)
        now = self._clock()
        planned = self._updater.next_deadline(connected=connection.ready)
        if planned is not None and planned <= now and not connection.can_send(now):
            # Throttled, and no other broker to use: the connection's own deadlines include the end of the throttle.
            planned = None
        deadlines = [connection.next_deadline(), planned]
        return min((at for at in deadlines if at is not None), default=None)

    def close(self) -> None:
        """Close the connection. No callbacks come after this."""
        self._cache.close()
        if self._connection is not None:
            _ = self._connection.close()
            self._connection = None
        if self._owns_resolver:
            self._resolver.close()

    # --- the connection ----------------------------------------------------------------------------------------------

    def connection_ready(self, connection: KafkaConnection[ControlQuery]) -> None:
        self._log.info("metadata_broker_connected", host=connection.host, port=connection.port)

    def connection_lost(self, connection: KafkaConnection[ControlQuery], tags: list[ControlQuery], reason: str) -> None:
        if connection is not self._connection:
            return
        now = self._clock()
        self._log_problem("brokers", reason)
        _ = connection.close()
        self._connection = None
        self._updater.queries_failed(tags, now, self._rng())
        self._updater.connection_failed(now, self._rng(), login_failed=connection.failed_during_login)
        if self._on_lost is not None:
            # An authentication failure counts only once no other broker can be used.
            self._on_lost(reason, connection.authentication_failed and self._updater.all_failed)

    def connection_answered(
        self, connection: KafkaConnection[ControlQuery], tag: ControlQuery, answer: ResponseOrBytes
    ) -> None:
        """Apply a response. Responses come in order, so the query determines the class of the response."""
        now = self._clock()
        match tag, answer:
            case TopicMetadataQuery(), MetadataResponse():
                self._take_topics(connection, tag, answer, now)
            case ProducerIdQuery(), InitProducerIdResponse():
                self._take_producer_id(answer, now)
            case TopicConfigQuery(), DescribeConfigsResponse():
                self._take_topic_settings(tag, answer, now)
            case BrokerConfigQuery(), DescribeConfigsResponse():
                self._take_broker_settings(answer, now)
            case _:
                raise AssertionError(f"{type(answer).__name__} answers {tag}")

    def _connect(self, target: BrokerTarget, now: float) -> None:
        turns = self._turns.setdefault((target.host, target.port), AddressRotation())
        self._connection = KafkaConnection(
            self._loop,
            self._resolver,
            target.host,
            target.port,
            options=self._options,
            owner=self,
            rng=self._rng,
            turns=turns,
            traffic=UNCOUNTED if self._watch is None else self._watch.traffic(target.node, now=now),
        )
        self._connection.connect()
        self._connection.tick(now)

    def _drop(self, now: float) -> None:
        """Close the connection to use another broker; the queries in flight are repeated there."""
        if self._connection is not None:
            self._updater.queries_failed(self._connection.close(), now, self._rng())
            self._connection = None

    def _send(self, connection: KafkaConnection[ControlQuery], ask: ControlQuery, now: float) -> None:
        match ask:
            case TopicMetadataQuery(topics):
                rows = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
                allowed = self._settings.allow_auto_create_topics
                request = MetadataRequest(
                    topics=rows,
                    allow_auto_topic_creation=allowed,
                    include_cluster_authorized_operations=False,
                    include_topic_authorized_operations=False,
                )
                sent = connection.send(request, ask, least=_METADATA_LEAST, now=now)
            case ProducerIdQuery():
                request_id = InitProducerIdRequest(
                    transactional_id=None,
                    transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS,
                    producer_id=-1,
                    producer_epoch=-1,
                    enable2_pc=False,
                    keep_prepared_txn=False,
                )
                sent = connection.send(request_id, ask, now=now)
            case TopicConfigQuery(topics):
                sent = connection.send(topic_config_request(topics), ask, now=now)
            case BrokerConfigQuery(node):
                sent = connection.send(broker_config_request(node), ask, now=now)
        if sent is None:
            self._refused_version(connection, ask, now)

    def _refused_version(self, connection: KafkaConnection[ControlQuery], ask: ControlQuery, now: float) -> None:
        where = f"{connection.host}:{connection.port}"
        match ask:
            case TopicMetadataQuery():
                self._updater.queries_failed([ask], now, self._rng())
                connection.disconnect(f"{where} takes no version of Metadata that we speak")
            case ProducerIdQuery():
                self._log_problem("producer_id", f"{where} takes no version of InitProducerId that we speak")
                self._updater.refused_producer_id(forbidden=True, now=now, chance=self._rng())
            case TopicConfigQuery(topics):
                self._updater.answered_topic_settings(topics, (), now, self._rng())
            case BrokerConfigQuery():
                self._updater.answered_broker_settings(told=False, now=now, chance=self._rng())

    # --- responses ---------------------------------------------------------------------------------------------------

    def _take_topics(
        self, connection: KafkaConnection[ControlQuery], ask: TopicMetadataQuery, response: MetadataResponse, now: float
    ) -> None:
        try:
            answer = read_metadata(response)
        except _UNREADABLE as error:
            self._updater.queries_failed([ask], now, self._rng())
            connection.disconnect(f"a Metadata answer cannot be understood: {error}")
            return
        match self._cache.apply_response(ask, answer, now, self._rng()):
            case MetadataMerged(change, leave):
                self._clear_problem("brokers")
                for topic in change.topics_dropped:
                    _ = self._topic_settings.pop(topic, None)
                if leave:
                    self._drop(now)
                if change:
                    self._on_change(change)
                if self._on_update is not None:
                    self._on_update()
            case MetadataRejected(reason):
                connection.disconnect(f"{connection.host}:{connection.port}: {reason}")
            case RebootstrapRequested():
                self._log_problem("brokers", "a broker sent us back to the bootstrap addresses")
                self._drop(now)

    def _take_producer_id(self, response: InitProducerIdResponse, now: float) -> None:
        verdict = classify_control_error(response.error_code)
        if verdict is ControlErrorClass.FINE and response.producer_id >= 0:
            self._updater.answered_producer_id()
            self._clear_problem("producer_id")
            self._log.info("producer_id_assigned", producer_id=response.producer_id, epoch=response.producer_epoch)
            if self._on_producer_id is not None:
                self._on_producer_id(response.producer_id, response.producer_epoch)
            return
        self._log_problem("producer_id", f"InitProducerId: {error_name(response.error_code)}")
        if verdict is ControlErrorClass.FORBIDDEN and self._on_producer_id_refused is not None:
            self._on_producer_id_refused(response.error_code)
        forbidden = verdict in (ControlErrorClass.FORBIDDEN, ControlErrorClass.UNSUPPORTED)
        self._updater.refused_producer_id(forbidden=forbidden, now=now, chance=self._rng())

    def _take_topic_settings(self, ask: TopicConfigQuery, response: DescribeConfigsResponse, now: float) -> None:
        settled: set[str] = set()
        for row in response.results:
            verdict = classify_control_error(row.error_code)
            if verdict is ControlErrorClass.FINE and self._updater.is_wanted(row.resource_name):
                self._topic_settings[row.resource_name] = topic_settings_of(row)
            elif verdict is ControlErrorClass.RETRY:
                continue
            settled.add(row.resource_name)
        untold = [topic for topic in ask.topics if topic not in settled]
        self._updater.answered_topic_settings(settled.intersection(ask.topics), untold, now, self._rng())

    def _take_broker_settings(self, response: DescribeConfigsResponse, now: float) -> None:
        told = False
        for row in response.results:
            if classify_control_error(row.error_code) is ControlErrorClass.FINE:
                told = True
                self.producer_id_expiration_ms = producer_id_expiration_ms(row)
        self._updater.answered_broker_settings(told=told, now=now, chance=self._rng())

    def _log_problem(self, subject: str, text: str) -> None:
        """Record a problem. Logs each text once, not per attempt: brokers are tried in turn, each with its own
        error."""
        self._problems[subject] = text
        said = self._logged_problems.setdefault(subject, set())
        if text not in said:
            if len(said) == _LOGGED_MAX:
                said.clear()
            said.add(text)
            self._log.warning("metadata_problem", subject=subject, reason=text)

    def _clear_problem(self, subject: str) -> None:
        _ = self._problems.pop(subject, None)
        _ = self._logged_problems.pop(subject, None)


def updater_limits(settings: ProducerSettings) -> MetadataUpdaterLimits:
    """The updater's limits, from the settings."""
    rebootstrap = settings.metadata_recovery_strategy == "rebootstrap"
    return MetadataUpdaterLimits(
        retry=Backoff(settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000),
        reconnect=Backoff(settings.reconnect_backoff_ms / 1000, settings.reconnect_backoff_max_ms / 1000),
        permission_backoff=_PERMISSION_BACKOFF,
        max_age_s=settings.metadata_max_age_ms / 1000,
        max_idle_s=settings.metadata_max_idle_ms / 1000,
        rebootstrap_after_s=settings.metadata_recovery_rebootstrap_trigger_ms / 1000 if rebootstrap else None,
    )
