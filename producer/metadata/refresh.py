"""Decides which control queries to send next, to which broker, and when. One control connection at a time; no sockets.

Topics are queried by name: new ones at once, all of them when something is stale or old. Queries that bring nothing new
are repeated less and less often.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum, auto
from typing import Final, NamedTuple

from ..network.connection_state import login_wait_s
from ..network.least_loaded import NEVER, ConnectionReadiness, least_loaded
from ..protocol.backoff import Backoff
from .cluster import BrokerAddress
from .retry_timer import RetryTimer

BOOTSTRAP: Final = -1
_TOPICS_MAX: Final = 1_000
"""Topics in one request, to limit the size of the response; further requests query the rest."""
_SETTINGS_MAX: Final = 100
_WATCH_S: Final = 30.0
"""Longer than an election after a broker failure, and than a broker's lag behind the controller."""
_MISSING_ANSWERS: Final = 2
"""A broker that has just started, or a topic just created, briefly reports "unknown": one response is not enough."""


class BrokerTarget(NamedTuple):
    """The broker to connect to. `node` -1: a bootstrap address, whose node id is unknown."""

    node: int
    host: str
    port: int


class TopicMetadataQuery(NamedTuple):
    """A Metadata request. Without topics it asks for the brokers only. `full`: it started a round over all wanted
    topics."""

    topics: tuple[str, ...]
    full: bool


class ProducerIdQuery(NamedTuple):
    """InitProducerId without a transactional id (IDN-1)."""


class TopicConfigQuery(NamedTuple):
    """DescribeConfigs of these topics."""

    topics: tuple[str, ...]


class BrokerConfigQuery(NamedTuple):
    """DescribeConfigs of the connected broker; only the broker itself can answer it."""

    node: int


ControlQuery = TopicMetadataQuery | ProducerIdQuery | TopicConfigQuery | BrokerConfigQuery


class TopicStatus(Enum):
    """The status of one topic in a Metadata response."""

    SETTLED = auto()
    UNSETTLED = auto()
    """No leader, no permission, or a transient error: queried again soon."""
    MISSING = auto()


class MetadataUpdaterLimits(NamedTuple):
    """Backoffs and maximum ages of the updater; times in seconds."""

    retry: Backoff
    reconnect: Backoff
    permission_backoff: Backoff
    """Backoff after an error that only an operator can fix: missing permissions."""
    max_age_s: float
    max_idle_s: float
    """A topic unused for this long is no longer queried (MET-8)."""
    rebootstrap_after_s: float | None
    """After failures only for this long, use only the bootstrap addresses (MET-18). None: never return to them."""


class _Failure(NamedTuple):
    attempts: int
    not_before: float
    at: float
    began: float
    """When the failed attempt started."""
    failed: bool = True
    """False: the broker did not fail, it only throttles us."""


class MetadataUpdater:
    """Decides what a metadata client does: which broker to use, and which queries to send when."""

    def __init__(self, limits: MetadataUpdaterLimits, bootstrap: Sequence[tuple[str, int]], *, now: float) -> None:
        assert bootstrap, "at least one address to begin with"
        self._limits = limits
        self._bootstrap = [BrokerTarget(BOOTSTRAP, host, port) for host, port in bootstrap]
        self._nodes: dict[int, BrokerAddress] = {}
        self._current: BrokerTarget | None = None
        self._tried_at = NEVER
        self._failures: dict[tuple[str, int], _Failure] = {}
        """By host and port; cleared when a Metadata response is merged."""
        self._wanted: dict[str, float] = {}
        """When each wanted topic was last used."""
        self._new: dict[str, None] = {}
        """Wanted topics that no response has covered yet."""
        self._unsettled: set[str] = set()
        """Topics whose last response was not SETTLED."""
        self._missing: dict[str, int] = {}
        """Number of consecutive MISSING responses, by topic."""
        self._rest: list[str] = []
        """Topics of the current round that are still to be queried."""
        self._metadata = RetryTimer()
        self._metadata.schedule(now)
        self._producer_id = RetryTimer()
        self._topic_settings: dict[str, RetryTimer] = {}
        self._broker_settings = RetryTimer()
        self._broker_settings.schedule(now)
        self._full_refresh_at = now
        """When all wanted topics were last refreshed; partial responses do not count."""
        self._round_is_full = False
        self._allowed_at = now
        """Nothing is queried again before this time; new topics do not wait for it."""
        self._trying_since: float | None = None
        self._full = False
        """Whether the next round queries all wanted topics."""
        self._unchanged_answers = 0
        self._watch_until = 0.0
        """Until this time every round queries all wanted topics."""

    # --- wanted topics -----------------------------------------------------------------------------------------------

    def is_wanted(self, topic: str) -> bool:
        return topic in self._wanted

    def want(self, topic: str, now: float) -> bool:
        """Query this topic from now on and restart its idle time. Returns True if it was not wanted before."""
        known = topic in self._wanted
        self._wanted[topic] = now
        if known:
            return False
        self._new[topic] = None
        self._metadata.schedule(now)
        return True

    def request(self, topic: str, now: float) -> None:
        """A caller waits for this topic and needs newer metadata. A new topic is queried already. Otherwise query
        everything as soon as the backoff allows, or only the unsettled topics if this is one of them (MET-3)."""
        if self.want(topic, now) or topic in self._new:
            return
        self._full = self._full or topic not in self._unsettled
        self._metadata.schedule(max(now, self._allowed_at))

    def expired(self, now: float, in_use: Callable[[], AbstractSet[str]]) -> list[str]:
        """Forget the topics that were unused for `max_idle_s`, and return them. A topic that no response has covered
        yet is not idle (MET-8)."""
        idle_since = now - self._limits.max_idle_s
        candidates = [topic for topic, at in self._wanted.items() if at <= idle_since and topic not in self._new]
        if not candidates:
            return []
        used = in_use()
        idle = [topic for topic in candidates if topic not in used]
        for topic in idle:
            self.forget(topic)
        # The idle time of a topic in use starts when its use ends.
        self._wanted.update((topic, now) for topic in candidates if topic in used)
        return idle

    def forget(self, topic: str) -> None:
        """Stop querying this topic."""
        self._wanted.pop(topic, None)
        self._new.pop(topic, None)
        self._unsettled.discard(topic)
        self._missing.pop(topic, None)
        self._topic_settings.pop(topic, None)

    def refresh(self, now: float) -> None:
        """Something is stale: query everything once the backoff allows. Repeat it for 30 s, because the queried broker
        may know less than the broker that reported the change."""
        self._full = True
        self._watch_until = now + _WATCH_S
        self._metadata.schedule(max(now, self._allowed_at))

    def request_producer_id(self, now: float) -> None:
        """Query for a producer id until one is granted."""
        self._producer_id.schedule(now)

    def want_settings(self, topic: str, now: float) -> None:
        """The topic exists: query its settings now, and again when they are old."""
        if topic not in self._topic_settings:
            chore = self._topic_settings[topic] = RetryTimer()
            chore.schedule(now)

    def is_missing(self, topic: str) -> bool:
        """Whether at least two responses in a row reported that the topic does not exist."""
        return self._missing.get(topic, 0) >= _MISSING_ANSWERS

    # --- broker selection --------------------------------------------------------------------------------------------

    @property
    def current(self) -> BrokerTarget | None:
        return self._current

    def target(self, now: float, chance: float) -> BrokerTarget | None:
        """The broker to connect to. None if all are in backoff; `next_deadline` is when to call again.

        Prefers the node with the fewest failures, then the one left alone longest; `chance` picks among equals.
        Bootstrap addresses are used until nodes are known, and again once every node has failed (MET-17).
        """
        if self._current is None:
            allowed = [target for target in self._candidates() if now >= self._failure(target).not_before]
            if allowed:
                least = min(self._failure(target).attempts for target in allowed)
                equals = [
                    (target, ConnectionReadiness(may_connect=True, last_attempt=self._failure(target).at))
                    for target in allowed
                    if self._failure(target).attempts == least
                ]
                self._current = least_loaded(equals, chance).node
                self._tried_at = now
                self._try(now)
        return self._current

    def update_nodes(self, nodes: Mapping[int, BrokerAddress]) -> bool:
        """Apply the brokers of a Metadata response. Returns True if the current connection must be replaced by one to a
        known node."""
        self._nodes = dict(nodes)
        current = self._current
        if current is None:
            return False
        for node in nodes.values():
            if (node.host, node.port) == (current.host, current.port):
                self._current = BrokerTarget(node.node, node.host, node.port)
                return False
        self._current = None
        return True

    def connection_failed(self, now: float, chance: float, *, login_failed: bool = False) -> None:
        """The current connection ended or could not be established: `target` picks another broker. After `login_failed`
        the broker's backoff is longer."""
        if self._current is None:
            return
        attempts = self._failure(self._current).attempts
        wait_s = self._limits.reconnect.wait_s(attempts, chance)
        if login_failed:
            wait_s = max(wait_s, login_wait_s(self._limits.reconnect, attempts, chance))
        self._failures[self._current.host, self._current.port] = _Failure(
            attempts + 1, now + wait_s, now, self._tried_at
        )
        self._current = None
        # When a broker fails, leaders move. A bootstrap address is useless until it has reported the nodes.
        self._full = True
        self._watch_until = now + _WATCH_S
        self._metadata.schedule(max(now, self._allowed_at))
        limit_s, since = self._limits.rebootstrap_after_s, self._trying_since
        if limit_s is not None and since is not None and now - since > limit_s:
            _ = self.rebootstrap()

    @property
    def all_failed(self) -> bool:
        """Whether every candidate broker has failed since the last Metadata response."""
        return all(self._failure(target).failed for target in self._candidates())

    def all_failed_since(self, at: float) -> bool:
        """Whether the last attempt at every candidate broker failed and started at `at` or later."""
        failures = [self._failure(target) for target in self._candidates()]
        return all(failure.failed and failure.began >= at for failure in failures)

    def leave_if_throttled(self, standing: ConnectionReadiness, throttled_until: float, now: float) -> bool:
        """Leave the current broker if it throttles us while a query is due and another broker is available. Returns
        True if so; the broker is not chosen again before `throttled_until`. `standing`: the readiness of its
        connection."""
        waits = standing.connected or standing.connecting or standing.may_connect or standing.in_flight > 0
        if self._current is None or waits or not (self._metadata.is_due(now) or self._producer_id.is_due(now)):
            return False
        current = self._current
        if not any(now >= self._failure(other).not_before for other in self._candidates() if other != current):
            return False
        place = (current.host, current.port)
        self._failures[place] = _Failure(self._failure(current).attempts, throttled_until, now, NEVER, failed=False)
        self._current = None
        return True

    def rebootstrap(self) -> bool:
        """Use only the bootstrap addresses until one responds (MET-18). Returns False if the settings disable it."""
        if self._limits.rebootstrap_after_s is None:
            return False
        self._nodes = {}
        self._current = None
        self._full = True
        self._trying_since = None
        return True

    # --- queries -----------------------------------------------------------------------------------------------------

    def due_queries(self, now: float) -> list[ControlQuery]:
        """The queries to send now over the ready connection; in flight until their response or `queries_failed`."""
        asks: list[ControlQuery] = []
        if self._metadata.is_due(now):
            self._metadata.in_flight = True
            self._try(now)
            asks.append(self._topics_to_ask(now))
        if self._current is None or self._current.node == BOOTSTRAP:
            # A bootstrap connection is dropped once it has reported the nodes; a node gets all other queries.
            return asks
        if self._producer_id.is_due(now):
            self._producer_id.in_flight = True
            asks.append(ProducerIdQuery())
        due = [topic for topic, chore in self._topic_settings.items() if chore.is_due(now)][:_SETTINGS_MAX]
        if due:
            for topic in due:
                self._topic_settings[topic].in_flight = True
            asks.append(TopicConfigQuery(tuple(due)))
        if self._broker_settings.is_due(now):
            self._broker_settings.in_flight = True
            asks.append(BrokerConfigQuery(self._current.node))
        return asks

    def queries_failed(self, asks: Iterable[ControlQuery], now: float, chance: float) -> None:
        """These queries got no response, or an unreadable one: repeat them after the backoff."""
        for ask in asks:
            match ask:
                case TopicMetadataQuery(full=full):
                    self._unchanged_answers = 0
                    self._full = self._full or full or self._round_is_full or bool(self._rest)
                    self._rest = []
                    self._metadata.retry(now, self._limits.retry, chance)
                    self._allowed_at = self._metadata.due or now
                case ProducerIdQuery():
                    self._producer_id.retry(now, self._limits.retry, chance)
                case TopicConfigQuery(topics):
                    self._retry_topic_settings(topics, now, chance)
                case BrokerConfigQuery():
                    self._broker_settings.retry(now, self._limits.retry, chance)

    def answered_topics(
        self, ask: TopicMetadataQuery, news: Mapping[str, TopicStatus], *, changed: bool, now: float, chance: float
    ) -> None:
        """A Metadata response was merged. `changed`: it contained something new."""
        if self._round_is_full and not self._rest:
            self._full_refresh_at = now
        self._trying_since = None
        self._failures.clear()
        for topic in ask.topics:
            if topic not in self._wanted:
                continue
            told = news.get(topic, TopicStatus.UNSETTLED)
            self._new.pop(topic, None)
            if told is TopicStatus.SETTLED:
                self._unsettled.discard(topic)
                self._missing.pop(topic, None)
                continue
            self._unsettled.add(topic)
            if told is TopicStatus.MISSING:
                self._missing[topic] = self._missing.get(topic, 0) + 1
            else:
                self._missing.pop(topic, None)
        self._unchanged_answers = 0 if changed else self._unchanged_answers + 1
        self._allowed_at = now + self._limits.retry.wait_s(max(self._unchanged_answers - 1, 0), chance)
        self._metadata.succeed(self._next_metadata(now))

    def answered_producer_id(self) -> None:
        """A producer id was granted: stop querying for one."""
        self._producer_id.succeed(None)

    def refused_producer_id(self, *, forbidden: bool, now: float, chance: float) -> None:
        """The broker refused a producer id: query again, with a longer backoff if a permission is missing."""
        self._producer_id.retry(now, self._limits.permission_backoff if forbidden else self._limits.retry, chance)

    def answered_topic_settings(self, told: Iterable[str], untold: Iterable[str], now: float, chance: float) -> None:
        """`told` topics are known or forbidden: query them again when they are old. `untold` topics failed."""
        for topic in told:
            if topic in self._topic_settings:
                self._topic_settings[topic].succeed(self._settings_again(now))
        self._retry_topic_settings(untold, now, chance)

    def answered_broker_settings(self, *, told: bool, now: float, chance: float) -> None:
        if told:
            self._broker_settings.succeed(self._settings_again(now))
        else:
            self._broker_settings.retry(now, self._limits.permission_backoff, chance)

    def next_deadline(self, *, connected: bool) -> float | None:
        """When to call again if nothing happens. Without a current broker: the earliest end of a backoff. None while
        its connection is not ready."""
        if self._current is None:
            return min((self._failure(target).not_before for target in self._candidates()), default=None)
        if not connected:
            return None
        chores = [self._metadata]
        if self._current.node != BOOTSTRAP:
            chores += [self._producer_id, self._broker_settings, *self._topic_settings.values()]
        return min((at for chore in chores if (at := chore.deadline()) is not None), default=None)

    # -----------------------------------------------------------------------------------------------------------------

    def _candidates(self) -> list[BrokerTarget]:
        nodes = [BrokerTarget(node.node, node.host, node.port) for _, node in sorted(self._nodes.items())]
        failed = all((node.host, node.port) in self._failures for node in nodes)
        if not nodes or (failed and self._limits.rebootstrap_after_s is not None):
            taken = {(node.host, node.port) for node in nodes}
            return [*nodes, *(target for target in self._bootstrap if (target.host, target.port) not in taken)]
        return nodes

    def _failure(self, target: BrokerTarget) -> _Failure:
        return self._failures.get((target.host, target.port), _Failure(0, 0.0, NEVER, NEVER, failed=False))

    def _topics_to_ask(self, now: float) -> TopicMetadataQuery:
        full = False
        if not self._rest:
            old = now >= self._full_refresh_at + self._limits.max_age_s
            full, self._full = self._full or old, False
            self._round_is_full = full
            if old:
                # A periodic refresh usually brings nothing new and must not lengthen the backoff (MET-6).
                self._unchanged_answers = 0
            self._rest = [topic for topic in self._wanted if full or topic in self._new or topic in self._unsettled]
        topics, self._rest = self._rest[:_TOPICS_MAX], self._rest[_TOPICS_MAX:]
        return TopicMetadataQuery(tuple(topics), full)

    def _next_metadata(self, now: float) -> float:
        if self._rest or self._new:
            return now
        if now < self._watch_until:
            self._full = True
        if self._full or self._unsettled:
            return self._allowed_at
        return max(self._allowed_at, self._full_refresh_at + self._limits.max_age_s)

    def _settings_again(self, now: float) -> float:
        return now + max(self._limits.max_age_s, self._limits.permission_backoff.initial_s)

    def _try(self, now: float) -> None:
        if self._trying_since is None:
            self._trying_since = now

    def _retry_topic_settings(self, topics: Iterable[str], now: float, chance: float) -> None:
        for topic in topics:
            if topic in self._topic_settings:
                self._topic_settings[topic].retry(now, self._limits.permission_backoff, chance)
