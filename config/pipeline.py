"""Every setting of the pipeline on Spark, declared once, and its file: TOML, strict, every problem told at once.

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
from .toml_files import Table, error_message, flat, read_merged, suggestion

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
    """From topics to tables. Spark's options of its Kafka source keep their names."""

    model_config = ConfigDict(populate_by_name=True)

    trigger: Annotated[str, BeforeValidator(_trigger)] = Field(default="30s", validate_default=True)
    """Time between the starts of two batches, or `once`: take what is there and end (for cron)."""
    starting_offsets: Literal["earliest", "latest"] = Field(default="earliest", alias="startingOffsets")
    """Where a topic begins on its very first start. New partitions are read from their beginning always."""
    fail_on_data_loss: bool = Field(default=True, alias="failOnDataLoss")
    """Stop when Kafka no longer has what was not read yet. `false` turns loss into silence."""
    max_offsets_per_trigger: int = Field(default=1_000_000, alias="maxOffsetsPerTrigger", ge=1, le=1 << 40)
    """Records of one topic and batch; bounds memory."""
    min_offsets_per_trigger: int = Field(default=_MIN_OFFSETS, alias="minOffsetsPerTrigger", ge=0, le=1 << 40)
    """Wait until so many are there (but see `maxTriggerDelay`), against small files. Not looked at with `once`."""
    max_trigger_delay: Annotated[str, BeforeValidator(_delay)] = Field(
        default="5m", alias="maxTriggerDelay", validate_default=True
    )
    """Longest time that fewer records wait."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Whether records of aborted transactions are left out; the connector's own default lands them."""
    dedupe: Literal["off", "watermark"] = "off"
    """`watermark`: Spark's streaming deduplication by record id, nine times slower and with state; the daemon makes no duplicates,
    and `seal` removes those of restored spools."""
    dedupe_window: Duration = Field(default=3_600.0, ge=1, le=30 * 86_400)
    """How long after a record landed a second one of its id is recognised."""
    record_bytes_max: ByteSize = Field(default=ByteSize(16 << 20), ge=1, le=1 << 30)
    """Longest value of a record that is parsed; a longer one goes into `quarantine` as `too_large`."""
    newer_ids: Literal["stop", "quarantine"] = "stop"
    """What an id header of a newer version does: stop until the pipeline is upgraded, which costs nothing, or `quarantine`, for a
    topic into which somebody writes such headers for fun. Other malformed ones go into `quarantine` always."""

    @model_validator(mode="before")
    @classmethod
    def _lower_min_offsets(cls, given: object) -> object:
        """Who lowers the most below the least that is set by default means both."""
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
    """One topic that is landed, by its name (quote names with dots: `[topics."clicks.web"]`)."""

    model_config = ConfigDict(populate_by_name=True)

    format: Format = "raw"
    """What values are: bytes (`raw`), or what they are parsed as. `variant` needs `writer = "delta-jvm"`."""
    schema_: str = Field(default="", alias="schema")
    """Columns of the value: Spark's DDL (`id long, name string`), for `avro` the record's schema as JSON. Declared, never inferred;
    `raw` and `variant` have none."""
    schema_file: Path | None = None
    """File with the schema, in place of `schema`."""
    schema_version: str = Field(default="1", min_length=1, max_length=64)
    """Name of the schema, kept with each row. Change it with the schema."""

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
    """Comparing what daemons say they took with what is in the tables."""

    topic: str = Field(default="penstock.audit", min_length=1, max_length=249)
    """The daemons' audit topic (their `audit.topic`)."""
    late_after: Duration = Field(default=900.0, ge=0, le=30 * 86_400)
    """Only where the end of a range in Kafka is not known: a settled record is `late` for so long, then `lost`."""
    heartbeat_stale: Duration = Field(default=120.0, ge=1, le=86_400)
    """A daemon whose last heartbeat is older counts as gone: `retire` takes it without `--force`."""
    hours_max: int = Field(default=24 * 31, ge=1, le=1_000_000)
    """Unsealed hours of a topic that one run looks at, the newest ones."""
    named_max: int = Field(default=100_000, ge=1, le=100_000_000)
    """Missing ranges, and duplicated ids, that one run names; more are counted and the report says so."""
    report: Path = Path("penstock-audit.html")
    """Where the HTML report is written, on the driver's host."""
    metrics_file: Path | None = None
    """Prometheus text file of the last run, for a node exporter's textfile collector."""


class SealSettings(Section):
    """Declaring hours complete."""

    grace: Duration = Field(default=86_400.0, ge=0, le=365 * 86_400)
    """How long after its end an hour with gaps waits before it is sealed as `sealed-with-gaps`."""
    target_file_bytes: ByteSize = Field(default=ByteSize(192 << 20), ge=1 << 20, le=4 << 30)
    """Size of the files an hour is rewritten into."""
    hours_max: int = Field(default=24 * 31, ge=1, le=1_000_000)
    """Hours that one run seals, the oldest first."""
    vacuum_after: Duration = Field(default=0.0, ge=0, le=365 * 86_400)
    """Delete files that left the tables of the topics this long ago, and those of failed tasks; versions that need them cannot be
    read any more. At least 24h. 0: never."""

    @model_validator(mode="after")
    def _check_vacuum_after(self) -> Self:
        if 0 < self.vacuum_after < _DAY:
            raise ValueError(
                "vacuum_after: at least 24h, or files of a batch that is being written would go; 0 is never"
            )
        return self


class ListenerSettings(Section):
    """What is told about running queries, and to whom."""

    listen: Address = ""
    """Address and port of `/metrics` in Prometheus' text format while `land` runs, `127.0.0.1:9798` for example. Empty: none."""
    statsd: Address = ""
    """Host and port of a StatsD server that is sent the same by UDP. Empty: none."""
    queue_max: int = Field(default=1_000, ge=1, le=1_000_000)
    """Events that wait for the listener's thread; when full the oldest is dropped, and counted."""
    lag_group: bool = True
    """After each batch commit its end offsets to the consumer group `<lag_group_prefix><job>`, so that ordinary tools show the lag."""
    lag_group_prefix: str = Field(default="penstock.lag.", min_length=1, max_length=200)
    """First part of that group's name."""
    lag_timeout: Duration = Field(default=10.0, ge=0.1, le=600)
    """How long one such commit may take; it is given up then, and counted."""


def _absolute(place: str) -> str:
    """Executors run elsewhere: a path from here means nothing there."""
    return place if _URL.match(place) else str(Path(place).absolute())


StorageLocation = Annotated[str, Field(min_length=1), AfterValidator(_absolute)]


class PipelineSettings(Section):
    """The whole file."""

    tables: StorageLocation
    """Folder of the tables: a path or URL that all executors reach."""
    checkpoints: StorageLocation
    """Folder of the checkpoints of `land`: one for each topic, never shared, never deleted while its table is used."""
    writer: Writer = "delta-rs"
    """What writes the tables: `delta-rs` (no jars), or the Delta connector of the JVM. A table may change its writer."""
    jars: Path | None = None
    """Folder with the jars of the Kafka connector. Unset: `build/jars` of the source tree that runs."""
    jars_delta: Path | None = None
    """Folder with the jars of the JVM's Delta connector, for `writer = "delta-jvm"`. Unset: `build/jars-delta` of the source tree."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level that is logged."""
    kafka_timeout: Duration = Field(default=15.0, ge=0.1, le=600)
    """How long brokers may take to answer what is asked before a job starts."""
    stop_timeout: Duration = Field(default=300.0, ge=0, le=86_400)
    """How long `land`, asked to end, may take to finish the batch it is at."""
    kafka: PipelineKafka
    land: LandSettings = LandSettings()
    topics: dict[str, PipelineTopicSettings] = Field(min_length=1)
    """The topics, by name."""
    audit: PipelineAuditSettings = PipelineAuditSettings()
    seal: SealSettings = SealSettings()
    listener: ListenerSettings = ListenerSettings()
    spark: dict[str, str] = Field(default_factory=dict)
    """Any setting of Spark; `spark.` may be left out of its name. Not those that the runner sets itself."""


def load_pipeline(path: Path) -> PipelineSettings:
    """Read a file and its drop-ins (`pipeline.toml`: `pipeline.conf.d/*.toml` beside it), merge, check. Relative paths are meant
    from where the command runs.

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
    """A wrong name under [kafka] may be near to one that only Java knows."""
    head = f"{'.'.join(str(part) for part in place)} is not a setting"
    if place[0] != "kafka" or head not in text:
        return text
    known = [*JAVA_ONLY, *(field.alias or name for name, field in PipelineKafka.model_fields.items() if name != "java")]
    return text[: text.index(head)] + head + suggestion([str(part) for part in place], known)


def _names(table: Table) -> Table:
    """Give back their dots to the names of Kafka and Spark."""
    result = dict(table)
    for section in ("kafka", "spark"):
        given = result.get(section)
        if isinstance(given, dict):
            result[section] = dict(flat(cast("Table", given)))
    spark = result.get("spark")
    if isinstance(spark, dict):
        result["spark"] = {_spark_name(name): _text(value) for name, value in cast("Table", spark).items()}
    return result


def _spark_name(name: str) -> str:
    """Under [spark] the first word may be left out."""
    return name if name.startswith("spark.") else f"spark.{name}"


def _text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _across(settings: PipelineSettings) -> Iterator[str]:
    """Rules between settings."""
    kafka = settings.kafka
    try:
        _ = parse_bootstrap(kafka.bootstrap_servers)
    except ValueError as error:
        yield f"kafka.{error}"
    if kafka.tls_insecure:
        yield "kafka.tls.insecure = true: Spark's connector always checks certificates; name ssl.truststore.location"
    jaas = kafka.sasl_jaas_config_file is not None
    yield from (
        f"kafka.{rule.message}"
        for rule in rule_violations(kafka)
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
