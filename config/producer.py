"""What the daemon's producer and the direct producer both are told, under Kafka's names: each setting declared once.

What differs between them, in default or in meaning, is declared in `model.py` and `direct.py`.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, cast

from pydantic import AfterValidator, Field, model_validator

from .security import SecuritySettings

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
INT_MAX: Final = 2**31 - 1


def _gzip_level(level: int) -> int:
    if level == 0:
        raise ValueError("gzip has levels 1 to 9, and -1 for its own default; for none write compression.type = none")
    return level


class ProducerSettings(SecuritySettings):
    """The producer, under Kafka's names."""

    bootstrap_servers: str = Field(min_length=1)
    """Brokers to begin with: `host:port`, comma-separated."""
    client_id: str
    """Name told to the brokers, for their logs and quotas."""
    client_dns_lookup: Literal["use_all_dns_ips"] = "use_all_dns_ips"
    """Only `use_all_dns_ips`: every address of a name is tried, one after the other."""
    compression_type: Codec = "none"
    """Codec of record batches."""
    compression_gzip_level: Annotated[int, AfterValidator(_gzip_level)] = Field(default=-1, ge=-1, le=9)
    """Level of gzip; -1 is zlib's own default."""
    compression_lz4_level: int = Field(default=9, ge=1, le=17)
    """Level of lz4. Kafka's default 9 means its fast compressor; 10 to 12 and above are its high-compression levels, 12 at most."""
    compression_zstd_level: int = Field(default=3, ge=-131_072, le=22)
    """Level of zstd."""
    max_in_flight_requests_per_connection: int = Field(default=5, ge=1, le=5)
    """Produce requests sent to a node before its first answer."""
    request_timeout_ms: int = Field(default=30_000, ge=1, le=INT_MAX)
    """How long a request may go unanswered, in ms, before its connection is closed and the batches are sent again."""
    retry_backoff_ms: int = Field(default=100, ge=1)
    """First wait before a batch or request is tried again, in ms; doubles with every try."""
    retry_backoff_max_ms: int = Field(default=1_000, ge=1)
    """Longest such wait, in ms."""
    reconnect_backoff_ms: int = Field(default=50, ge=1)
    """First wait before a connection is tried again, in ms; doubles with every try."""
    reconnect_backoff_max_ms: int = Field(default=1_000, ge=1)
    """Longest such wait, in ms. Where only the first wait is given, it is the longest one too."""
    socket_connection_setup_timeout_ms: int = Field(default=10_000, ge=100)
    """How long a connection may take to be established, in ms."""
    socket_connection_setup_timeout_max_ms: int = Field(default=30_000, ge=100)
    """Longest such time, in ms; it doubles with every failure."""
    connections_max_idle_ms: int = Field(default=540_000, ge=1_000)
    """Close a connection unused for so long, in ms."""
    send_buffer_bytes: int = Field(default=131_072, ge=-1, le=INT_MAX)
    """SO_SNDBUF of connections to brokers; -1 leaves it to the kernel."""
    receive_buffer_bytes: int = Field(default=32_768, ge=-1, le=INT_MAX)
    """SO_RCVBUF of connections to brokers; -1 leaves it to the kernel."""
    metadata_max_age_ms: int = Field(default=300_000, ge=1_000)
    """Ask for metadata at least this often, in ms."""
    metadata_max_idle_ms: int = Field(default=300_000, ge=5_000)
    """Stop asking for a topic that nothing was sent to for so long, in ms; the next record asks again."""
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = "rebootstrap"
    """When none of the known brokers can be reached: begin again with `bootstrap.servers`, or (`none`) go on trying them."""
    metadata_recovery_rebootstrap_trigger_ms: int = Field(default=300_000, ge=0)
    """Begin again with `bootstrap.servers` also when metadata could not be had for so long, in ms."""
    allow_auto_create_topics: bool = False
    """Let brokers make a topic that is asked for and does not exist."""
    partitioner_ignore_keys: bool = False
    """Choose partitions as if records had no keys."""
    partitioner_adaptive_partitioning_enable: bool = True
    """Send fewer of the records without a key to partitions for which much waits."""
    partitioner_availability_timeout_ms: int = Field(default=0, ge=0)
    """Send no records without a key to a broker that took nothing for so long, in ms, though something waited for it; 0: never
    mind. Looked at with the loads only."""
    partitioner_rack_aware: bool = False
    """Send records without a key to partitions whose leader is in `client.rack`, as long as there are any that take them."""
    client_rack: str = ""
    """The rack that records are sent from, as brokers name theirs."""
    enable_metrics_push: Literal[False] = False
    """Only `false` so far: brokers are not sent metrics of their clients."""

    @model_validator(mode="before")
    @classmethod
    def _constant_reconnect_backoff(cls, given: object) -> object:
        """CFG-1: who gives only the first wait wants it to stay so."""
        if not isinstance(given, Mapping):
            return given
        table = dict(cast("Mapping[str, object]", given))
        first = table.get("reconnect.backoff.ms", table.get("reconnect_backoff_ms"))
        if first is not None and not {"reconnect.backoff.max.ms", "reconnect_backoff_max_ms"} & set(table):
            table["reconnect.backoff.max.ms"] = first
        return table

    def warnings(self) -> tuple[str, ...]:
        """What is allowed but probably not meant (CFG-2, CFG-3; security), one sentence each."""
        pairs = (
            ("retry.backoff.ms", self.retry_backoff_ms, "retry.backoff.max.ms", self.retry_backoff_max_ms),
            (
                "socket.connection.setup.timeout.ms",
                self.socket_connection_setup_timeout_ms,
                "socket.connection.setup.timeout.max.ms",
                self.socket_connection_setup_timeout_max_ms,
            ),
        )
        return super().warnings() + tuple(
            f"{name} = {first} exceeds {longest_name} = {longest}: it is {longest} ms every time"
            for name, first, longest_name, longest in pairs
            if first > longest
        )
