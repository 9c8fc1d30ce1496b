"""A transactional client spelled out step by step, for any broker: what it asks, and what it is told without what two brokers cannot share.

A step is a plain dictionary, so that it can be written down as it is; `txn` names the transactional id (default `a`):

    init     epoch (what it thinks it has), id, timeout_ms, version     find     kind, version
    add      epoch, version, topic                                      put      epoch, first, count, version, plain, id
    end      epoch, commit, version, id                                 join     epoch, version (AddOffsetsToTxn)
    commit   epoch, offset, version, generation, member                 fetched  stable, version (OffsetFetch)
    state    (DescribeTransactions)                                     writers  (DescribeProducers)
    read     isolated, offset (Fetch)                                   end_of   isolated, timestamp (ListOffsets)
    enter    member, session_ms, version (JoinGroup)                    share    member, generation (SyncGroup)
    beat     member, generation (Heartbeat)                             leave    member (LeaveGroup)

Producer ids are told by their number in the order in which the conversation met them; a step's `id` means one by that number, and
`member` a name that the group gave.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from kafka.protocol.admin.transactions import DescribeProducersRequest, DescribeTransactionsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

from .batches import HEAD, Head, Rec, batch

Step = dict[str, Any]
Ask = Callable[[ApiMessage, int], ApiMessage]
NOBODY = 9_000_000_001
STEPS = frozenset(
    "init find add put end join commit plain_commit fetched state writers read end_of enter share beat leave".split()  # noqa: SIM905
)
SUFFIXES = {"TOPIC": "", "GROUP": "-group", "TRANSACTIONAL_ID": "-a"}
"""What a resource's name has behind the topic's."""

TRANSACTIONAL, CONTROL = 0x10, 0x20


class Talk:
    """One client's conversation about one topic with one partition."""

    def __init__(self, ask: Ask, topic: str, topic_id: UUID | None = None) -> None:
        self._ask = ask
        self._topic = topic
        self._topic_id = topic_id
        self._ids: list[int] = []
        self._members: list[str] = []
        self.at_ms = 0

    def tell(self, step: Step) -> Step:
        """Ask what a step says, and return what is told."""
        told: Step = getattr(self, f"_{step['do']}")(step)
        return told

    def name(self, step: Step) -> str:
        """The transactional id of a step."""
        return f"{self._topic}-{step.get('txn', 'a')}"

    def group(self) -> str:
        return f"{self._topic}-group"

    def _number(self, producer_id: int) -> int:
        if producer_id < 0:
            return -1
        if producer_id not in self._ids:
            self._ids.append(producer_id)
        return self._ids.index(producer_id)

    def _id(self, step: Step) -> int:
        number = step.get("id", len(self._ids) - 1)
        return self._ids[number] if 0 <= number < len(self._ids) else NOBODY

    def _member(self, step: Step) -> str:
        given = step.get("member", "")
        return self._members[given] if isinstance(given, int) else str(given)

    def _enter(self, step: Step) -> Step:
        spoken = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
        request = JoinGroupRequest(
            group_id=self.group(),
            session_timeout_ms=step.get("session_ms", 10_000),
            rebalance_timeout_ms=5_000,
            member_id=self._member(step),
            protocol_type=step.get("kind", "consumer"),
            protocols=[spoken],
        )
        answer = self._ask(request, step.get("version", 9))
        if answer.member_id and answer.member_id not in self._members and answer.error_code in {0, 79}:
            self._members.append(answer.member_id)
        leads = answer.leader == answer.member_id
        return {"error": answer.error_code, "generation": answer.generation_id, "leads": leads}

    def _share(self, step: Step) -> Step:
        name = self._member(step)
        given = [SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=b"all")]
        request = SyncGroupRequest(
            group_id=self.group(), generation_id=step["generation"], member_id=name, assignments=given
        )
        answer = self._ask(request, 4)
        return {"error": answer.error_code, "assignment": bytes(answer.assignment or b"").decode()}

    def _beat(self, step: Step) -> Step:
        request = HeartbeatRequest(
            group_id=self.group(), generation_id=step["generation"], member_id=self._member(step)
        )
        return {"error": self._ask(request, 4).error_code}

    def _leave(self, step: Step) -> Step:
        one = LeaveGroupRequest.MemberIdentity(member_id=self._member(step))
        answer = self._ask(LeaveGroupRequest(group_id=self.group(), members=[one]), 4)
        return {"error": answer.error_code, "errors": [told.error_code for told in answer.members]}

    def _find(self, step: Step) -> Step:
        version, kind = step.get("version", 4), step.get("kind", 1)
        key = self.group() if kind == 0 else self.name(step)
        answer = self._ask(FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]), version)
        found = answer.coordinators[0] if version >= 4 else answer
        return {"error": found.error_code}

    def _init(self, step: Step) -> Step:
        thinks = "epoch" in step
        request = InitProducerIdRequest(
            transactional_id=self.name(step),
            transaction_timeout_ms=step.get("timeout_ms", 60_000),
            producer_id=self._id(step) if thinks else -1,
            producer_epoch=step.get("epoch", -1),
        )
        answer = self._ask(request, step.get("version", 4))
        return {"error": answer.error_code, "id": self._number(answer.producer_id), "epoch": answer.producer_epoch}

    def _add(self, step: Step) -> Step:
        named = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        topics = [named(name=name, partitions=[0]) for name in step.get("topics", [self._topic])]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name(step),
            v3_and_below_producer_id=self._id(step),
            v3_and_below_producer_epoch=step["epoch"],
            v3_and_below_topics=topics,
        )
        answer = self._ask(request, step.get("version", 3))
        parts = [part for one in answer.results_by_topic_v3_and_below for part in one.results_by_partition]
        return {"errors": sorted(part.partition_error_code for part in parts)}

    def _put(self, step: Step) -> Step:
        records = [Rec(timestamp=self.at_ms)] * step.get("count", 1)
        attributes = 0 if step.get("plain") else TRANSACTIONAL
        head = Head(self._id(step), step["epoch"], step["first"], attributes)
        part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=batch(records, head))
        data = ProduceRequest.TopicProduceData(name=self._topic, topic_id=self._topic_id, partition_data=[part])
        name = None if step.get("nameless") else self.name(step)
        request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=5000, topic_data=[data])
        answer = self._ask(request, step["version"])
        (told,) = answer.responses[0].partition_responses
        return {"error": told.error_code, "base_offset": told.base_offset, "log_start": told.log_start_offset}

    def _end(self, step: Step) -> Step:
        request = EndTxnRequest(
            transactional_id=self.name(step),
            producer_id=self._id(step),
            producer_epoch=step["epoch"],
            committed=step["commit"],
        )
        answer = self._ask(request, step["version"])
        told = {"error": answer.error_code}
        if step["version"] >= 5:
            told |= {"id": self._number(answer.producer_id), "epoch": answer.producer_epoch}
        return told

    def _join(self, step: Step) -> Step:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name(step),
            producer_id=self._id(step),
            producer_epoch=step["epoch"],
            group_id=self.group(),
        )
        return {"error": self._ask(request, step.get("version", 3)).error_code}

    def _commit(self, step: Step) -> Step:
        named = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = named.TxnOffsetCommitRequestPartition(
            partition_index=step.get("partition", 0), committed_offset=step["offset"], committed_metadata="m"
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name(step),
            group_id=self.group(),
            producer_id=self._id(step),
            producer_epoch=step["epoch"],
            generation_id=step.get("generation", -1),
            member_id=self._member(step),
            topics=[named(name=self._topic, partitions=[part])],
        )
        (told,) = self._ask(request, step.get("version", 3)).topics[0].partitions
        return {"error": told.error_code}

    def _plain_commit(self, step: Step) -> Step:
        named = OffsetCommitRequest.OffsetCommitRequestTopic
        part = named.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=step["offset"], committed_metadata="m"
        )
        request = OffsetCommitRequest(
            group_id=self.group(),
            generation_id_or_member_epoch=step.get("generation", -1),
            member_id=self._member(step),
            topics=[named(name=self._topic, partitions=[part])],
        )
        (told,) = self._ask(request, 8).topics[0].partitions
        return {"error": told.error_code}

    def _fetched(self, step: Step) -> Step:
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        named = kind.OffsetFetchRequestTopics(name=self._topic, partition_indexes=[0])
        request = OffsetFetchRequest(
            groups=[kind(group_id=self.group(), topics=[named])], require_stable=step.get("stable", False)
        )
        (group,) = self._ask(request, 8).groups
        if group.error_code:
            return {"error": group.error_code}
        (told,) = group.topics[0].partitions
        return {"error": told.error_code, "offset": told.committed_offset}

    def _state(self, step: Step) -> Step:
        request = DescribeTransactionsRequest(transactional_ids=[self.name(step)])
        (told,) = self._ask(request, 0).transaction_states
        if told.error_code:
            return {"error": told.error_code}
        return {
            "error": 0,
            "state": told.transaction_state,
            "id": self._number(told.producer_id),
            "epoch": told.producer_epoch,
            "timeout_ms": told.transaction_timeout_ms,
            # Brokers before 4.0 keep the time of the last transaction when nothing is open.
            "started": told.transaction_start_time_ms >= 0 and told.transaction_state == "Ongoing",
            "partitions": sum(len(one.partitions) for one in told.topics),
        }

    def _writers(self, _: Step) -> Step:
        asked = DescribeProducersRequest.TopicRequest(name=self._topic, partition_indexes=[0])
        (part,) = self._ask(DescribeProducersRequest(topics=[asked]), 0).topics[0].partitions
        found = [
            [self._number(one.producer_id), one.producer_epoch, one.last_sequence, one.current_txn_start_offset]
            for one in part.active_producers
        ]
        return {"error": part.error_code, "writers": sorted(found)}

    def _read(self, step: Step) -> Step:
        part = FetchRequest.FetchTopic.FetchPartition(
            partition=0, fetch_offset=step.get("offset", 0), partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(step.get("isolated", True)),
            topics=[FetchRequest.FetchTopic(topic=self._topic, partitions=[part])],
            forgotten_topics_data=[],
        )
        (told,) = self._ask(request, 11).responses[0].partitions
        aborted = [[self._number(one.producer_id), one.first_offset] for one in told.aborted_transactions or ()]
        return {
            "error": told.error_code,
            "high_watermark": told.high_watermark,
            "last_stable": told.last_stable_offset,
            "aborted": sorted(aborted),
            "batches": [list(one) for one in batches_of(bytes(told.records or b""))],
        }

    def _end_of(self, step: Step) -> Step:
        kind = ListOffsetsRequest.ListOffsetsTopic
        part = kind.ListOffsetsPartition(
            partition_index=0, timestamp=step.get("timestamp", -1), current_leader_epoch=-1
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(step.get("isolated", True)),
            topics=[kind(name=self._topic, partitions=[part])],
        )
        (told,) = self._ask(request, 7).topics[0].partitions
        return {"error": told.error_code, "offset": told.offset}


def batches_of(data: bytes) -> list[tuple[int, int, str]]:
    """Base offset, number of records, and kind of each batch of a Fetch answer."""
    found: list[tuple[int, int, str]] = []
    at = 0
    while at + HEAD.size <= len(data):
        head = HEAD.unpack_from(data, at)
        attributes, size = head[5], 12 + head[1]
        kind = "plain"
        if attributes & CONTROL:
            # length, attributes, two deltas, length of the key, then the key: a version and the type
            kind = "commit" if data[at + HEAD.size + 8] == 1 else "abort"
        elif attributes & TRANSACTIONAL:
            kind = "transactional"
        found.append((head[0], head[12], kind))
        at += size
    return found
