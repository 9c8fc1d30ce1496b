"""A process's metadata client: one control connection at a time, on which it asks for topics and leaders, for the
producer id, and for the few settings of topics and brokers that decide how we send.

What to ask of whom and when is decided in `producer/metadata/refresh.py`, what is known is kept in `producer/metadata/cache.py`.
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
"""Below it a broker creates every topic that is asked for, if it is set up to."""
_NO_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1
_PERMISSION_BACKOFF: Final = Backoff(1.0, 30.0)
_LOGGED_MAX: Final = 100
_UNREADABLE: Final = (AttributeError, TypeError, ValueError)


class Metadata:
    """What a process knows of the cluster, and how it comes to know.

    Call `tick` in every round of the loop and wake up for `next_deadline`. Callbacks come from `tick`, from the loop's
    events, and from `apply_leader_hint`: `on_change` where something is new, `on_update` after every answer, `on_lost` when a connection
    ended, with the reason, and whether nobody is left who might believe who we are. `in_use` names the
    topics that are not idle although nobody wanted them lately. `topic_settings` False: settings of topics are of no use.
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
        """`producer.id.expiration.ms` of the brokers; None: not told."""
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
        """By host and port: which address of a name is next outlives the connection."""
        self._problems: dict[str, str] = {}
        self._logged_problems: dict[str, set[str]] = {}
        """What the log was told since all was well, by subject."""
        self._topic_settings: dict[str, TopicSettings] = {}
        options = CacheOptions(settings.allow_auto_create_topics, topic_settings, in_use)
        bootstrap = parse_bootstrap(settings.bootstrap_servers)
        self._cache = MetadataCache(updater_limits(settings), bootstrap, options, now=self._clock())
        self._updater = self._cache.updater

    # --- for the owner -----------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster:
        """The newest snapshot, from any thread."""
        return self._cache.cluster

    def want(self, topic: str) -> None:
        """Keep this topic's metadata; asked for in the next `tick` if it is new. Cheap to say again, and then it is not idle."""
        self._cache.want(topic, self._clock())

    def request(self, topic: str) -> None:
        """Somebody waits for the topic, and what is known of it does not do (MDW-4)."""
        self._updater.request(topic, self._clock())

    def forget(self, topic: str) -> None:
        """Nobody uses the topic any more."""
        self._cache.forget(topic)
        _ = self._topic_settings.pop(topic, None)

    def refresh(self) -> None:
        """Something known is stale: ask for everything, as soon as the backoff allows."""
        self._updater.refresh(self._clock())

    def topic(self, name: str) -> TopicView | None:
        """What is known; None: nothing, or no partition of it yet."""
        return self._cache.topic(name)

    def topic_error(self, name: str) -> str | None:
        """Kafka's name of what live brokers say is wrong with the topic. That it is unknown counts from the second answer
        on, and never where brokers may create it."""
        return self._cache.topic_error(name)

    def topic_settings(self, name: str) -> TopicSettings | None:
        """Settings of a topic; None: not told yet, or not permitted."""
        return self._topic_settings.get(name)

    def seed(self, topic: str, topic_id: bytes | None, leader_epochs: Mapping[int, int]) -> None:
        """Leader epochs recorded in an earlier life: nothing older is believed (HO-16)."""
        self._cache.seed(topic, topic_id, leader_epochs)

    def apply_leader_hint(
        self, topic: str, index: int, leader: int, leader_epoch: int, address: BrokerAddress | None = None
    ) -> bool:
        """A Produce answer told of another leader. True: it was newer, and `on_change` was told. The truth is asked for anyway."""
        change = self._cache.apply_leader_hint(topic, index, leader, leader_epoch, address, self._clock())
        if change:
            self._on_change(change)
        return bool(change)

    def request_producer_id(self) -> None:
        """Ask for a producer id until one is granted; `on_producer_id` is told it and its epoch."""
        self._updater.request_producer_id(self._clock())

    @property
    def problems(self) -> Mapping[str, str]:
        """What does not work now, in words, by subject (`brokers`, `producer_id`, `settings`). Empty: all is well."""
        return self._problems

    @property
    def connected_to(self) -> BrokerTarget | None:
        """The broker that is asked; None: none is connected."""
        connection = self._connection
        return self._updater.current if connection is not None and connection.ready else None

    def reachable_since(self, at: float) -> bool | None:
        """True: a broker is connected. False: none is, and each was tried in vain at that time or later (CLOCK_MONOTONIC
        seconds). None: not known yet."""
        if self.connected_to is not None:
            return True
        return False if self._updater.all_failed_since(at) else None

    def offers(self, api_key: int) -> bool | None:
        """Whether the broker that is asked takes version 0 of an API; None: none is connected."""
        connection = self._connection
        ready = connection is not None and connection.ready
        return connection.version_of(api_key, 0, 0) is not None if ready and connection is not None else None

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return 0 if self._connection is None else self._connection.in_flight

    @property
    def round_trip_us(self) -> int:
        return 0 if self._connection is None else self._connection.round_trip_us

    def tick(self, now: float) -> None:
        """Connect and ask, as far as it is due."""
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
        """When `tick` wants to be called (CLOCK_MONOTONIC seconds; in the past: at once)."""
        connection = self._connection
        if connection is None:
            return self._updater.next_deadline(connected=False)
        now = self._clock()
        planned = self._updater.next_deadline(connected=connection.ready)
        if planned is not None and planned <= now and not connection.can_send(now):
            # Throttled, and nobody else to ask: the end of that is among the connection's own deadlines.
            planned = None
        deadlines = [connection.next_deadline(), planned]
        return min((at for at in deadlines if at is not None), default=None)

    def close(self) -> None:
        """End the connection; nothing is called back any more."""
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
            # While others can be asked, one broker's refusal is nobody's concern.
            self._on_lost(reason, connection.authentication_failed and self._updater.all_failed)

    def connection_answered(
        self, connection: KafkaConnection[ControlQuery], tag: ControlQuery, answer: ResponseOrBytes
    ) -> None:
        """The response's class follows from the question, because answers come in order."""
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
        """For another broker; what was asked is asked again there."""
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

    # --- answers -----------------------------------------------------------------------------------------------------

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
        """A log line for what is new, not for every attempt: brokers are tried in turn, and each has words of its own."""
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
    """The waits of the plan, out of the settings."""
    rebootstrap = settings.metadata_recovery_strategy == "rebootstrap"
    return MetadataUpdaterLimits(
        retry=Backoff(settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000),
        reconnect=Backoff(settings.reconnect_backoff_ms / 1000, settings.reconnect_backoff_max_ms / 1000),
        permission_backoff=_PERMISSION_BACKOFF,
        max_age_s=settings.metadata_max_age_ms / 1000,
        max_idle_s=settings.metadata_max_idle_ms / 1000,
        rebootstrap_after_s=settings.metadata_recovery_rebootstrap_trigger_ms / 1000 if rebootstrap else None,
    )
