"""Groups of consumers on the embedded broker: joining, sharing, leaving, and what their generations may commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.cluster.responses import DelayedResponse
from penstock.broker.log.error_codes import ErrorCode as E
from penstock.broker.requests.dispatch import ReceivedRequest, apply, decode, with_pending
from penstock.broker.requests.periodic_tasks import next_deadline, upkeep

from tests.harness.batches import batch
from tests.harness.transaction_bench import OneTalk

GROUP = "t-group"


@dataclass
class Asked:
    """A request of one consumer, answered or not."""

    request: ReceivedRequest
    kind: type[ApiMessage]
    version: int


@dataclass
class Members:
    """Consumers of one group; the coordinator was found."""

    talk: OneTalk = field(default_factory=OneTalk)

    def __post_init__(self) -> None:
        for kind in (0, 1):
            assert self.talk.do("find", kind=kind) == {"error": 0}

    def start(self, request: ApiMessage, version: int) -> ApiMessage | Asked:
        request.API_VERSION = version
        request.with_header(1, "test")
        asked = decode(request.encode(header=True), arrived=self.talk.bench.clock.now)
        return self.go_on(Asked(asked, ResponseClassRegistry.get_response_class(request.header), version))

    def go_on(self, asked: ApiMessage | Asked) -> ApiMessage | Asked:
        assert isinstance(asked, Asked)
        outcome = apply(self.talk.bench.node, asked.request, self.talk.bench.clock.moment)
        if isinstance(outcome, DelayedResponse):
            return Asked(with_pending(asked.request, outcome), asked.kind, asked.version)
        return asked.kind.decode(outcome.data, version=asked.version, header=True, framed=True)

    def join(
        self,
        name: str = "",
        *,
        instance: str | None = None,
        version: int = 9,
        session_ms: int = 10_000,
        protocols: Sequence[str] = ("range",),
        kind: str = "consumer",
    ) -> ApiMessage | Asked:
        spoken = [JoinGroupRequest.JoinGroupRequestProtocol(name=one, metadata=b"m") for one in protocols]
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=5_000,
            member_id=name,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=spoken,
        )
        return self.start(request, version)

    def named(self, **more: object) -> str:
        """A name for a consumer that has none."""
        answer = self.join(**more)  # type: ignore[arg-type]
        assert not isinstance(answer, Asked)
        assert answer.error_code == E.MEMBER_ID_REQUIRED
        return str(answer.member_id)

    def sync(self, name: str, generation: int, **assignments: bytes) -> ApiMessage | Asked:
        given = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=one, assignment=data)
            for one, data in assignments.items()
        ]
        return self.start(
            SyncGroupRequest(group_id=GROUP, generation_id=generation, member_id=name, assignments=given), 5
        )

    def beat(self, name: str, generation: int) -> int:
        answer = self.start(HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=name), 4)
        assert not isinstance(answer, Asked)
        return int(answer.error_code)

    def leave(self, name: str, version: int = 5) -> int:
        one = LeaveGroupRequest.MemberIdentity(member_id=name)
        answer = self.start(LeaveGroupRequest(group_id=GROUP, member_id=name, members=[one]), version)
        assert not isinstance(answer, Asked)
        return int(answer.error_code if version < 3 else answer.members[0].error_code)

    def alone(self, name: str = "") -> str:
        """One consumer that has everything."""
        name = name or self.named()
        joined = told(self.join(name))
        assert (joined.error_code, joined.leader, joined.member_id) == (0, name, name)
        synced = told(self.sync(name, joined.generation_id, **{name: b"all"}))
        assert (synced.error_code, synced.assignment) == (0, b"all")
        return name


def told(answer: ApiMessage | Asked) -> ApiMessage:
    assert not isinstance(answer, Asked), "it waits"
    return answer


def test_one_consumer_joins_shares_with_itself_and_leaves() -> None:
    group = Members()
    name = group.alone()
    assert group.beat(name, 1) == 0
    assert group.beat(name, 0) == E.ILLEGAL_GENERATION
    assert group.beat("x", 1) == E.UNKNOWN_MEMBER_ID
    assert group.leave("x") == E.UNKNOWN_MEMBER_ID
    assert group.leave(name) == 0
    assert group.beat(name, 1) == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(4))
def test_clients_of_old_are_not_asked_to_come_back_with_a_name(version: int) -> None:
    group = Members()
    joined = told(group.join(version=version))
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert group.leave(joined.member_id, version=2) == 0


def test_a_second_consumer_waits_for_the_first_and_the_leader_shares() -> None:
    group = Members()
    first = group.alone()
    second = group.named()
    waiting = group.join(second)
    assert isinstance(waiting, Asked)
    assert group.beat(first, 1) == E.REBALANCE_IN_PROGRESS
    joined = told(group.join(first))
    assert (joined.generation_id, joined.leader) == (2, first)
    assert sorted(one.member_id for one in joined.members) == sorted((first, second))
    other = told(group.go_on(waiting))
    assert (other.generation_id, other.leader, other.members) == (2, first, [])
    follower = group.sync(second, 2)
    assert isinstance(follower, Asked)
    assert group.talk.do("plain_commit", offset=1, generation=2, member=second)["error"] == E.REBALANCE_IN_PROGRESS
    assert told(group.sync(first, 2, **{first: b"1", second: b"2"})).assignment == b"1"
    assert told(group.go_on(follower)).assignment == b"2"
    assert told(group.sync(second, 2)).assignment == b"2"
    assert group.leave(first) == 0
    assert group.beat(second, 2) == E.REBALANCE_IN_PROGRESS
    assert told(group.join(second)).leader == second


def test_who_does_not_come_back_in_time_is_out() -> None:
    group = Members()
    first = group.alone()
    waiting = group.join(group.named())
    group.talk.pass_ms(5_000)
    joined = told(group.go_on(waiting))
    assert (joined.error_code, len(joined.members)) == (0, 1)
    assert group.beat(first, 2) == E.UNKNOWN_MEMBER_ID


def test_who_is_silent_for_too_long_is_out() -> None:
    group = Members()
    name = group.alone()
    bench = group.talk.bench
    group.talk.pass_ms(9_000)
    assert group.beat(name, 1) == 0
    due = next_deadline(bench.node, bench.clock.now)
    assert due == pytest.approx(bench.clock.now + 1)
    group.talk.pass_ms(9_000)
    assert group.beat(name, 1) == 0
    group.talk.pass_ms(10_000)
    assert group.beat(name, 1) == E.UNKNOWN_MEMBER_ID


def test_an_instance_that_comes_back_takes_its_place_and_fences_the_one_before() -> None:
    group = Members()
    first = told(group.join(instance="i"))
    assert first.error_code == 0
    second = told(group.join(instance="i"))
    assert second.error_code == 0
    assert second.member_id != first.member_id
    assert told(group.join(first.member_id, instance="i")).error_code == E.FENCED_INSTANCE_ID


def test_consumers_that_do_not_fit_are_refused() -> None:
    group = Members()
    _ = group.alone()
    assert told(group.join(protocols=["roundrobin"])).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert told(group.join(kind="connect")).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert told(group.join(session_ms=1)).error_code == E.INVALID_SESSION_TIMEOUT
    assert told(group.join("nobody")).error_code == E.UNKNOWN_MEMBER_ID


def test_members_of_the_present_generation_commit_and_nobody_else() -> None:
    group = Members()
    name = group.alone()
    talk = group.talk
    assert talk.do("plain_commit", offset=3, generation=1, member=name) == {"error": 0}
    assert talk.do("plain_commit", offset=4, generation=0, member=name) == {"error": E.ILLEGAL_GENERATION}
    assert talk.do("plain_commit", offset=4, generation=1, member="x") == {"error": E.UNKNOWN_MEMBER_ID}
    assert talk.do("plain_commit", offset=4) == {"error": E.UNKNOWN_MEMBER_ID}
    assert talk.do("fetched") == {"error": 0, "offset": 3}
    assert talk.do("init")["error"] == 0
    assert talk.do("commit", epoch=0, offset=5, version=5, generation=0, member=name) == {"error": E.ILLEGAL_GENERATION}
    assert talk.do("commit", epoch=0, offset=5, version=5, generation=1, member="x") == {"error": E.UNKNOWN_MEMBER_ID}
    assert talk.do("commit", epoch=0, offset=5, version=5, generation=1, member=name) == {"error": 0}
    assert talk.do("commit", epoch=0, offset=6, version=5) == {"error": 0}
    assert talk.do("end", epoch=0, commit=True, version=5)["error"] == 0
    assert talk.do("fetched", stable=True) == {"error": 0, "offset": 6}


def expiring() -> Members:
    group = Members(OneTalk(BrokerNodeLimits(offsets_retention_ms=60_000)))
    group.talk.pass_ms(0)
    return group


def test_offsets_of_a_group_without_members_expire_by_their_own_commit() -> None:
    group = expiring()
    assert group.talk.do("plain_commit", offset=3) == {"error": 0}
    group.talk.pass_ms(50_000)
    assert group.talk.do("fetched")["offset"] == 3
    group.talk.pass_ms(10_000)
    assert group.talk.do("fetched")["offset"] == -1


def test_offsets_of_a_group_with_members_expire_when_they_have_long_left() -> None:
    group = expiring()
    name = group.alone()
    assert group.talk.do("plain_commit", offset=3, generation=1, member=name) == {"error": 0}
    for _ in range(10):
        group.talk.pass_ms(9_000)
        assert group.beat(name, 1) == 0
    assert group.leave(name) == 0
    group.talk.pass_ms(50_000)
    assert group.talk.do("fetched")["offset"] == 3
    group.talk.pass_ms(10_000)
    assert group.talk.do("fetched")["offset"] == -1


def test_clients_write_nothing_to_the_brokers_own_topics() -> None:
    group = Members()
    for topic in ("__consumer_offsets", "__transaction_state"):
        assert group.talk.bench.produce(batch(), topic=topic).error_code == E.INVALID_TOPIC
    bench = OneTalk().bench
    made = bench.node.create_topic("__consumer_offsets", 1, (), bench.clock.moment)
    assert made is not None
    assert made.partitions == 4
    upkeep(bench.node, bench.clock.moment)
