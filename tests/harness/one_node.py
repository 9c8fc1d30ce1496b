"""What one broker says. A client library asks whichever broker it likes; this asks the one that is named."""

import socket
import struct
from typing import Final, NamedTuple, TypeVar

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

METADATA_VERSION: Final = 9
"""The last one that both sides address topics by name alone in; every broker of the tests has it."""
ANSWER_S: Final = 5.0
Answer = TypeVar("Answer", bound="ApiMessage")


class Part(NamedTuple):
    """One partition, as that broker knows it; node ids, below 0 for no leader."""

    leader: int
    replicas: frozenset[int]
    in_sync: frozenset[int]


class View(NamedTuple):
    """What a broker knows."""

    brokers: frozenset[int]
    topics: dict[str, dict[int, Part]]


def ask(host: str, port: int, request: ApiMessage, answer: type[Answer], *, version: int) -> Answer | None:
    """What this broker answers to one request on a connection of its own; None when it does not answer."""
    request.API_VERSION = version
    request.with_header(1, "tests")
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S) as connection:
            connection.sendall(request.encode(header=True, framed=True))
            with connection.makefile("rb") as stream:
                size = stream.read(4)
                body = stream.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""
    except OSError:
        return None
    return answer.decode(size + body, version=version, header=True, framed=True) if body else None


def view_of(host: str, port: int) -> View | None:
    """One Metadata answer of this broker, about every topic; None when it does not answer."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    known = ask(host, port, request, MetadataResponse, version=METADATA_VERSION)
    if known is None:
        return None
    topics = {
        topic.name: {
            part.partition_index: Part(part.leader_id, frozenset(part.replica_nodes), frozenset(part.isr_nodes))
            for part in topic.partitions
        }
        for topic in known.topics
    }
    return View(frozenset(broker.node_id for broker in known.brokers), topics)
