"""Identifiers as distinct types, so that a partition number is never passed as an offset."""

from typing import NewType

PartitionNumber = NewType("PartitionNumber", int)
"""The daemon's number for (identity, topic, partition index) in messages, journals and the spool."""

PartitionIndex = NewType("PartitionIndex", int)
"""Kafka's number of a partition inside its topic, from 0."""

Ordinal = NewType("Ordinal", int)
"""A record's index in its partition's history in this spool: 0, 1, 2, … never reused."""

NodeId = NewType("NodeId", int)
"""A broker's id."""

ShardId = NewType("ShardId", int)
"""The slot of a shard process: 0 … shards - 1."""

Generation = NewType("Generation", int)
"""Counts the grants of one partition within one start of the router."""

NO_LEADER = NodeId(-1)
NO_OFFSET = -1
NO_TIME = -1
