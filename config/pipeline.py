"""Declares every setting of the Spark pipeline once, and loads its strict TOML file. Reports every problem at once.

Spark's and Kafka's own settings keep their names (`maxOffsetsPerTrigger`, `bootstrap.servers`); ours use underscores.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, ByteSize, ConfigDict, Field, ValidationError, model_validator

from .bootstrap import parse_bootstrap
from .durations import Duration, seconds_of
from .errors import ConfigError
from .pipeline_kafka import JAVA_ONLY, REFUSED, PipelineKafka
from .section import Section
from .security import rule_violations
from .security_names import OTHER_CLIENTS_NAMES
from .toml_files import Table, error_message, read_merged, suggestion, with_flat

Format = Literal["raw", "json", "variant", "msgpack", "avro"]
Writer = Literal["delta-rs", "delta-jvm"]

_REFUSED: Final = {**OTHER_CLIENTS_NAMES, **REFUSED}
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MIN_OFFSETS: Final = 100_000
_DAY: Final = 86_400.0
_WITH_SCHEMA: Final = ("json", "msgpack", "avro")


def _trigger(given: object) -> object:
    if given == "once":
        return given
    try:
        seconds = seconds_of(given)
    except ValueError:
        raise ValueError("a time such as 30s is wanted, or once") from None
    if not 0 <= seconds <= 86_400:
        raise ValueError("a time from 0 to 24h is wanted, or once")
    return f"{int(seconds * 1_000)} milliseconds"


def _delay(given: object) -> object:
    return f"{int(seconds_of(given) * 1_000)}ms"


def _address(text: str) -> str:
    if text:
        found = parse_bootstrap(text)
        if len(found) != 1:
            raise ValueError("one host:port is wanted")
    return text


Address = Annotated[str, AfterValidator(_address)]


class LandSettings(Section):
    """Landing topics in tables. Options of Spark's Kafka source keep their names."""

    model_config = ConfigDict(populate_by_name=True)

    trigger: Annotated[str, BeforeValidator(_trigger)] = Field(default="30s", validate_default=True)
    """Time between the starts of two batches, or `once`: process the available records and exit (for cron)."""
    starting_offsets: Literal["earliest", "latest"] = Field(default="earliest", alias="startingOffsets")
    """Where a topic's very first run starts reading. New partitions are always read from their beginning."""
    fail_on_data_loss: bool = Field(default=True, alias="failOnDataLoss")
    """Stop when Kafka no longer has records that were not read yet. With `false`, such loss is not reported."""
    max_offsets_per_trigger: int = Field(default=1_000_000, alias="maxOffsetsPerTrigger", ge=1, le=1 << 40)
    """Maximum records per topic and batch; bounds memory."""
    min_offsets_per_trigger: int = Field(default=_MIN_OFFSETS, alias="minOffsetsPerTrigger", ge=0, le=1 << 40)
    """Wait for at least this many records (but see `maxTriggerDelay`), to avoid small files. Ignored with `once`."""
    max_trigger_delay: Annotated[str, BeforeValidator(_delay)] = Field(
        default="5m", alias="maxTriggerDelay", validate_default=True
    )
    """Longest time to wait for that many records."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Whether records of aborted transactions are left out (`read_committed`); the connector's own default,
    `read_uncommitted`, lands them."""
    dedupe: Literal["off", "watermark"] = "off"
    """`watermark`: Spark's streaming deduplication by record id, nine times slower and with state. The daemon writes no
    duplicates, and `seal` removes those of restored spools."""
    dedupe_window: Duration = Field(default=3_600.0, ge=1, le=30 * 86_400)
    """How long after a record landed a second record with its id is recognised."""
    record_bytes_max: ByteSize = Field(default=ByteSize(16 << 20), ge=1, le=1 << 30)
    """Longest record value that is parsed, in bytes; a longer one goes into `quarantine` as `too_large`."""
    newer_ids: Literal["stop", "quarantine"] = "stop"
    """What happens at an id header of a newer version: `stop` until the pipeline is upgraded, which costs nothing, or
    `quarantine`, for a topic into which somebody writes such headers on purpose. Other malformed headers always go into
    `quarantine`."""

    @model_validator(mode="before")
    @classmethod
    def _lower_min_offsets(cls, given: object) -> object:
        """Lower the default minimum too if the given maximum is below it."""
        if not isinstance(given, dict):
            return given
        table = cast("dict[str, object]", given)
        most = table.get("maxOffsetsPerTrigger", table.get("max_offsets_per_trigger"))
        if (
            isinstance(most, int)
            and most < _MIN_OFFSETS
            and not {"minOffsetsPerTrigger", "min_offsets_per_trigger"} & set(table)
        ):
            return {**table, "minOffsetsPerTrigger": most}
        return table

    @property
    def is_once(self) -> bool:
        return self.trigger == "once"


class PipelineTopicSettings(Section):
    """One topic to land, by its name (quote names with dots: `[topics."clicks.web"]`)."""

    model_config = ConfigDict(populate_by_name=True)

    format: Format = "raw"
    """Format of values: bytes (`raw`), or the format they are parsed as. `variant` needs `writer = "delta-jvm"`."""
    schema_: str = Field(default="", alias="schema")
    """Columns of the value: Spark's DDL (`id long, name string`), for `avro` the record's schema as JSON. Declared, never inferred;
    `raw` and `variant` have none."""
    schema_file: Path | None = None
    """File with the schema, instead of `schema`."""
    schema_version: str = Field(default="1", min_length=1, max_length=64)
    """Version of the schema, stored with each row. Change it together with the schema."""

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.schema_ and self.schema_file is not None:
            raise ValueError("schema and schema_file are given: keep one")
        wanted = self.format in _WITH_SCHEMA
        given = bool(self.schema_) or self.schema_file is not None
        if wanted and not given:
            raise ValueError(f'format = "{self.format}" needs schema or schema_file: it is declared, never inferred')
        if given and not wanted:
            raise ValueError(f'format = "{self.format}" has no schema')
        return self


class PipelineAuditSettings(Section):
    """Comparing the records that daemons took with the rows of the tables."""

    topic: str = Field(default="penstock.audit", min_length=1, max_length=249)
    """The daemons' audit topic (their `audit.topic`)."""
    late_after: Duration = Field(default=900.0, ge=0, le=30 * 86_400)
    """Used only if the end of a range in Kafka is unknown: a settled record is `late` for this long, then `lost`."""
    heartbeat_stale: Duration = Field(default=120.0, ge=1, le=86_400)
    """A daemon whose last heartbeat is older than this counts as gone: `retire` accepts it without `--force`."""
    hours_max: int = Field(default=24 * 31, ge=1, le=1_000_000)
    """Maximum unsealed hours of a topic that one run checks, newest first."""
    named_max: int = Field(default=100_000, ge=1, le=100_000_000)
    """Maximum missing ranges, and duplicated ids, that one run lists; further ones are counted, and the report shows
    their number."""
    report: Path = Path("penstock-audit.html")
    """Path of the HTML report, on the driver's host."""
    metrics_file: Path | None = None
    """Path of a Prometheus text file with the results of the last run, for a node exporter's textfile collector."""


class SealSettings(Section):
    """Declaring hours complete."""

    grace: Duration = Field(default=86_400.0, ge=0, le=365 * 86_400)
    """How long after its end an hour with gaps waits before it is sealed as `sealed-with-gaps`."""
    target_file_bytes: ByteSize = Field(default=ByteSize(192 << 20), ge=1 << 20, le=4 << 30)
    """Target size of the files that an hour is rewritten into."""
    hours_max: int = Field(default=24 * 31, ge=1, le=1_000_000)
    """Maximum hours that one run seals, oldest first."""
    vacuum_after: Duration = Field(default=0.0, ge=0, le=365 * 86_400)
    """Delete files that were removed from the topics' tables this long ago, and files of failed tasks. Table versions
    that need them can no longer be read. At least 24h. 0: never."""

    @model_validator(mode="after")
    def _check_vacuum_after(self) -> Self:
        if 0 < self.vacuum_after < _DAY:
            raise ValueError(
                "vacuum_after: at least 24h, or files of a batch that is being written would go; 0 is never"
            )
        return self


class ListenerSettings(Section):
    """Metrics and lag of running queries, and where they are sent."""

    listen: Address = ""
    """Address and port of `/metrics` in Prometheus' text format while `land` runs, for example `127.0.0.1:9798`. Empty:
    none."""
    statsd: Address = ""
    """Host and port of a StatsD server that receives the same metrics by UDP. Empty: none."""
    queue_max: int = Field(default=1_000, ge=1, le=1_000_000)
    """Maximum events that wait for the listener's thread; when full, the oldest is dropped and counted."""
    lag_group: bool = True
    """After each batch, commit its end offsets to the consumer group `<lag_group_prefix><job>`, so that ordinary tools
    show the lag."""
    lag_group_prefix: str = Field(default="penstock.lag.", min_length=1, max_length=200)
    """Prefix of that group's name."""
    lag_timeout: Duration = Field(default=10.0, ge=0.1, le=600)
    """How long one such commit may take before it is abandoned and counted."""


def _absolute(place: str) -> str:
    """Make a path absolute: executors run in other directories, where a relative path would be wrong."""
    return place if _URL.match(place) else str(Path(place).absolute())


StorageLocation = Annotated[str, Field(min_length=1), AfterValidator(_absolute)]


class PipelineSettings(Section):
    """Settings outside of any section."""

    tables: StorageLocation
    """Directory of the tables: a path or URL that all executors can reach."""
    checkpoints: StorageLocation
    """Directory of `land`'s checkpoints: one per topic, never shared, never deleted while its table is in use."""
    writer: Writer = "delta-rs"
    """Library that writes the tables: `delta-rs` (no jars), or the JVM's Delta connector (`delta-jvm`). The writer of a
    table may be changed."""
    jars: Path | None = None
    """Directory with the jars of the Kafka connector. Unset: `build/jars` of the running source tree."""
    jars_delta: Path | None = None
    """Directory with the jars of the JVM's Delta connector, for `writer = "delta-jvm"`. Unset: `build/jars-delta` of
    the source tree."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level that is logged."""
    kafka_timeout: Duration = Field(default=15.0, ge=0.1, le=600)
    """How long brokers may take to respond to the requests made before a job starts."""
    stop_timeout: Duration = Field(default=300.0, ge=0, le=86_400)
    """How long `land` may take to finish its current batch after a request to stop."""
    kafka: PipelineKafka
    land: LandSettings = LandSettings()
    topics: dict[str, PipelineTopicSettings] = Field(min_length=1)
    """The topics, by name."""
    audit: PipelineAuditSettings = PipelineAuditSettings()
    seal: SealSettings = SealSettings()
    listener: ListenerSettings = ListenerSettings()
    spark: dict[str, str] = Field(default_factory=dict)
    """Any setting of Spark, except those that the runner sets. `spark.` may be left out of its name."""


def load_pipeline(path: Path) -> PipelineSettings:
    """Read a file and its drop-ins (`pipeline.toml`: `pipeline.conf.d/*.toml` beside it), merge, check. Relative paths
    start at the command's working directory.

    Raises:
        ConfigError: with every problem found.
    """
    drop_ins = sorted((path.parent / f"{path.stem}.conf.d").glob("*.toml"))
    return validate_pipeline(read_merged([path, *drop_ins]), str(path))


def validate_pipeline(table: Table, source: str) -> PipelineSettings:
    """Check a table of settings as TOML gives it.

    Raises:
        ConfigError: with every problem found.
    """
    try:
        settings = PipelineSettings.model_validate(_names(table))
    except ValidationError as error:
        raise ConfigError(
            [
                _with_kafka_names(detail["loc"], error_message(detail, source, PipelineSettings, _REFUSED))
                for detail in error.errors()
            ]
        ) from error
    problems = [f"{source}: {problem}" for problem in _across(settings)]
    if problems:
        raise ConfigError(problems)
    return settings


def _with_kafka_names(place: tuple[int | str, ...], text: str) -> str:
    """Suggest a similar name for a wrong name under [kafka], also from the settings that only Java knows."""
    head = f"{'.'.join(str(part) for part in place)} is not a setting"
    if place[0] != "kafka" or head not in text:
        return text
    known = [*JAVA_ONLY, *(field.alias or name for name, field in PipelineKafka.model_fields.items() if name != "java")]
    return text[: text.index(head)] + head + suggestion([str(part) for part in place], known)


def _names(table: Table) -> Table:
    """Restore the dots in the names of Kafka and Spark."""
    result = with_flat(table, "kafka", "spark")
    spark = result.get("spark")
    if isinstance(spark, dict):
        # `spark.` may be left out of a name.
        result["spark"] = {
            f"spark.{name.removeprefix('spark.')}": _text(value) for name, value in cast("Table", spark).items()
        }
    return result


def _text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _across(settings: PipelineSettings) -> Iterator[str]:
    """Yield violations of the rules between settings."""
    kafka = settings.kafka
    if kafka.tls_insecure:
        yield "kafka.tls.insecure = true: Spark's connector always checks certificates; name ssl.truststore.location"
    jaas = kafka.sasl_jaas_config_file is not None
    yield from (
        f"kafka.{rule.message}"
        for rule in rule_violations(kafka, kafka.bootstrap_servers)
        if not (
            jaas and set(rule.names) & {"sasl.username", "sasl.password.file", "sasl.oauthbearer.token.endpoint.url"}
        )
    )
    if settings.audit.topic in settings.topics:
        yield f"topics.{settings.audit.topic}: this is the audit topic, which is read by audit and never landed"
    if settings.writer != "delta-jvm":
        for name, topic in settings.topics.items():
            if topic.format == "variant":
                yield f'topics.{name}.format = "variant" needs writer = "delta-jvm"'
    if settings.land.min_offsets_per_trigger > settings.land.max_offsets_per_trigger:
        yield "land.minOffsetsPerTrigger must not exceed land.maxOffsetsPerTrigger"
    if settings.tables.rstrip("/") == settings.checkpoints.rstrip("/"):
        yield "checkpoints must not be the folder of the tables"
