"""Exchanges with a broker: requests from the steps of a case, and what answers tell, without what two brokers cannot share."""

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from kafka.protocol.admin.topics import DeleteRecordsRequest
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

REQUESTS = frozenset({"produce", "producers", "offset", "epoch", "delete", "init"})
"""Steps that are requests; the others are done to the cluster."""


def request_of(step: dict[str, Any], topic: str, lives: Sequence[UUID] = ()) -> tuple[ApiMessage, int]:
    """The request of a step, and its version; `lives` are the ids that the topic had."""
    topic = step.get("topic", topic)
    match step["do"]:
        case "produce":
            part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=bytes.fromhex(step["data"]))
            entry = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
            if "life" in step:
                entry = ProduceRequest.TopicProduceData(topic_id=lives[step["life"]], partition_data=[part])
            timeout = step.get("timeout_ms", 5000)
            request = ProduceRequest(
                transactional_id=None, acks=step.get("acks", -1), timeout_ms=timeout, topic_data=[entry]
            )
            return request, step.get("version", 9)
        case "producers":
            asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
            return DescribeProducersRequest(topics=[asked]), 0
        case "offset":
            offsets = ListOffsetsRequest.ListOffsetsTopic
            one = offsets.ListOffsetsPartition(
                partition_index=0, timestamp=step["timestamp"], current_leader_epoch=step.get("epoch", -1)
            )
            named = offsets(name=topic, partitions=[one])
            return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[named]), 7
        case "epoch":
            epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
            end = epochs.OffsetForLeaderPartition(
                partition=0, current_leader_epoch=step["current"], leader_epoch=step["asked"]
            )
            return OffsetForLeaderEpochRequest(replica_id=-1, topics=[epochs(topic=topic, partitions=[end])]), 4
        case "init":
            return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4
        case _:
            trimmed = DeleteRecordsRequest.DeleteRecordsTopic
            until = trimmed.DeleteRecordsPartition(partition_index=0, offset=step["offset"])
            return DeleteRecordsRequest(topics=[trimmed(name=topic, partitions=[until])], timeout_ms=5000), 2


def told_by(step: dict[str, Any], answer: ApiMessage) -> dict[str, Any]:
    """What an answer says."""
    match step["do"]:
        case "produce":
            (part,) = answer.responses[0].partition_responses
            told = {
                "error": part.error_code,
                "base_offset": part.base_offset,
                "log_start": part.log_start_offset,
                "log_append_ms": part.log_append_time_ms,
                "bad": [one.batch_index for one in part.record_errors],
            }
            if "hints" in step:
                leader = part.current_leader
                told["leader"] = leader and [leader.leader_id, leader.leader_epoch]
                told["endpoints"] = sorted(one.node_id for one in answer.node_endpoints or ())
            return told
        case "init":
            # Which id it is no two clusters share.
            return {"error": answer.error_code, "given": answer.producer_id >= 0, "epoch": answer.producer_epoch}
        case "producers":
            (part,) = answer.topics[0].partitions
            states = [
                [one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp]
                for one in part.active_producers
            ]
            return {"error": part.error_code, "producers": sorted(states)}
        case "offset":
            (part,) = answer.topics[0].partitions
            return {
                "error": part.error_code,
                "offset": part.offset,
                "timestamp": part.timestamp,
                "epoch": part.leader_epoch,
            }
        case "epoch":
            (part,) = answer.topics[0].partitions
            return {"error": part.error_code, "epoch": part.leader_epoch, "end": part.end_offset}
        case _:
            (part,) = answer.topics[0].partitions
            return {"error": part.error_code, "low": part.low_watermark}


def let_pass(seconds: float) -> None:
    """Let time pass at a real broker, where nothing shows that it did what it does in that time."""
    time.sleep(seconds)
