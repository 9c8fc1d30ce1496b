"""Settings shared by the daemon's producer and the direct producer, under Kafka's names, each declared once.

Settings that differ between them, in default or in meaning, are declared in `model.py` and `direct.py`.
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
    """Settings of the producer, under Kafka's names."""

    bootstrap_servers: str = Field(min_length=1)
    """Brokers for the first connection: `host:port`, comma-separated."""
    client_id: str
    """Client name sent to the brokers, for their logs and quotas."""
    client_dns_lookup: Literal["use_all_dns_ips"] = "use_all_dns_ips"
    """Only `use_all_dns_ips`: every address of a name is tried in turn."""
    compression_type: Codec = "none"
    """Codec of record batches."""
    compression_gzip_level: Annotated[int, AfterValidator(_gzip_level)] = Field(default=-1, ge=-1, le=9)
    """Compression level of gzip; -1 is zlib's own default."""
    compression_lz4_level: int = Field(default=9, ge=1, le=17)
    """Compression level of lz4. Kafka's default 9 selects its fast compressor; 10 to 12 and above are its
    high-compression levels, capped at 12."""
    compression_zstd_level: int = Field(default=3, ge=-131_072, le=22)
    """Compression level of zstd."""
    max_in_flight_requests_per_connection: int = Field(default=5, ge=1, le=5)
    """Maximum unacknowledged Produce requests per node."""
    request_timeout_ms: int = Field(default=30_000, ge=1, le=INT_MAX)
    """How long a request may wait for its response, in ms, before the connection is closed and its batches retried."""
    retry_backoff_ms: int = Field(default=100, ge=1)
    """First backoff before a batch or request is retried, in ms; doubles with every retry."""
    retry_backoff_max_ms: int = Field(default=1_000, ge=1)
    """Maximum of that backoff, in ms."""
    reconnect_backoff_ms: int = Field(default=50, ge=1)
    """First backoff before reconnecting, in ms; doubles with every attempt."""
    reconnect_backoff_max_ms: int = Field(default=1_000, ge=1)
    """Maximum of that backoff, in ms. If only `reconnect.backoff.ms` is given, it is the maximum too."""
    socket_connection_setup_timeout_ms: int = Field(default=10_000, ge=100)
    """How long establishing a connection may take, in ms."""
    socket_connection_setup_timeout_max_ms: int = Field(default=30_000, ge=100)
    """Maximum of that time, in ms; the time doubles with every failure."""
    connections_max_idle_ms: int = Field(default=540_000, ge=1_000)
    """Close a connection that has been idle for this long, in ms."""
    send_buffer_bytes: int = Field(default=131_072, ge=-1, le=INT_MAX)
    """SO_SNDBUF of connections to brokers; -1 leaves it to the kernel."""
    receive_buffer_bytes: int = Field(default=32_768, ge=-1, le=INT_MAX)
    """SO_RCVBUF of connections to brokers; -1 leaves it to the kernel."""
    metadata_max_age_ms: int = Field(default=300_000, ge=1_000)
    """Refresh metadata at least this often, in ms."""
    metadata_max_idle_ms: int = Field(default=300_000, ge=5_000)
    """Stop refreshing metadata of a topic that has received no records for this long, in ms; the next record requests
    it again."""
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = "rebootstrap"
    """What to do when no known broker can be reached: start again from `bootstrap.servers` (`rebootstrap`), or keep
    trying the known brokers (`none`)."""
    metadata_recovery_rebootstrap_trigger_ms: int = Field(default=300_000, ge=0)
    """Also start again from `bootstrap.servers` when metadata has been unavailable for this long, in ms."""
    allow_auto_create_topics: bool = False
    """Let brokers create a topic that is requested and does not exist."""
    partitioner_ignore_keys: bool = False
    """Choose partitions as if records had no keys."""
    partitioner_adaptive_partitioning_enable: bool = True
    """Send fewer of the records without a key to partitions with many waiting records."""
    partitioner_availability_timeout_ms: int = Field(default=0, ge=0)
    """Send no records without a key to a broker that has taken nothing for this long, in ms, while records waited for
    it; 0 disables this. Used only with adaptive partitioning."""
    partitioner_rack_aware: bool = False
    """Send records without a key to partitions whose leader is in `client.rack`, as long as any of them accepts
    records."""
    client_rack: str = ""
    """Rack of this producer, as the brokers name their racks."""
    enable_metrics_push: Literal[False] = False
    """Only `false` so far: client metrics are not pushed to brokers."""

    @model_validator(mode="before")
    @classmethod
    def _constant_reconnect_backoff(cls, given: object) -> object:
        """Use `reconnect.backoff.ms` as the maximum too if only it is given (CFG-1)."""
        if not isinstance(given, Mapping):
            return given
        table = dict(cast("Mapping[str, object]", given))
        first = table.get("reconnect.backoff.ms", table.get("reconnect_backoff_ms"))
        if first is not None and not {"reconnect.backoff.max.ms", "reconnect_backoff_max_ms"} & set(table):
            table["reconnect.backoff.max.ms"] = first
        return table

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about allowed but probably unintended values (CFG-2, CFG-3; security), one sentence each."""
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
