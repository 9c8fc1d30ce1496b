"""Settings of the direct producer, under Kafka's names and with Kafka's defaults. Every problem is reported at once.

Values may be Python values or strings as in a properties file. A setting that conflicts with idempotence is an error
unless `enable.idempotence` is explicitly false: idempotence is never disabled silently (CFG-14).
"""

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from types import UnionType
from typing import Annotated, Final, Literal, Self, Union, cast, get_args, get_origin

from pydantic import AfterValidator, Field, ValidationError, model_validator

from .errors import ConfigError, expectation, redacted
from .kafka_names import DIRECT_REFUSED
from .producer import INT_MAX, ProducerSettings
from .secret_files import file_problems
from .security import RuleViolation, rule_violations
from .security_names import OTHER_CLIENTS_NAMES

Acks = Literal["all", "-1", "0", "1"]

_LONG_MAX: Final = 2**63 - 1
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LISTS: Final = ("bootstrap.servers", "ssl.enabled.protocols", "ssl.cipher.suites", "sasl.oauthbearer.extensions")
_DELIVERY_TIMEOUT_MS: Final = 120_000
_PLACEHOLDER: Final = "localhost:9092"
_numbers: Final = itertools.count(1)
"""Numbers of this process's producers without a name (CFG-6)."""


def _number_of(acks: Acks) -> Acks:
    return "-1" if acks == "all" else acks


class DirectSettings(ProducerSettings):
    """Settings of the direct producer, under Kafka's names."""

    # Made by `direct_settings`, which checks what the declarations cannot say.

    client_id: str = ""
    """Client name sent to the brokers, for their logs and quotas. Empty: `producer-` plus the transactional id, or plus
    a number counted in this process."""
    acks: Annotated[Acks, AfterValidator(_number_of)] = "all"
    """Brokers that must have a record before it counts as delivered: all in-sync replicas (`all`, which reads back as
    `-1`), the leader (`1`), or none (`0`). Idempotence needs `all`."""
    enable_idempotence: bool = True
    """Write each record to the log once and in order, however often it is sent. Disabled only if `false` is written."""
    retries: int = Field(default=INT_MAX, ge=0, le=INT_MAX)
    """How often a batch is retried after a transient error. `delivery.timeout.ms` may end it sooner. Idempotence needs
    at least 1."""
    delivery_timeout_ms: int = Field(default=_DELIVERY_TIMEOUT_MS, ge=0, le=INT_MAX)
    """How long a record may stay undelivered after `send`, in ms, before its future fails. At least `linger.ms` +
    `request.timeout.ms`; if left out, it is raised to that sum."""
    linger_ms: Annotated[int, AfterValidator(lambda given: min(given, INT_MAX))] = Field(default=5, ge=0)
    """How long a batch may wait to fill, in ms, counted from its first record. Zero sends at once."""
    batch_size: Annotated[int, AfterValidator(lambda given: max(given, 1))] = Field(default=16_384, ge=0, le=INT_MAX)
    """Maximum size of one batch in bytes, by the estimated compressed size of its records. A larger record gets a batch
    of its own; 0 gives every record its own batch."""
    buffer_memory: int = Field(default=32 << 20, ge=0)
    """Maximum bytes of records that wait or are in flight; `send` waits for free memory for at most `max.block.ms`. At
    least `batch.size`. Half of it is divided among the brokers in use and half is shared by all: a broker that takes
    nothing leaves the others their shares."""
    max_request_size: int = Field(default=1_048_576, ge=0, le=INT_MAX)
    """Maximum bytes of one record before compression, and of the batches of one Produce request."""
    max_block_ms: int = Field(default=60_000, ge=0)
    """How long `send` and `partitions_for` may wait for metadata and memory together, and how long transaction calls
    may wait to complete, in ms."""
    enable_metrics_push: bool = True  # type: ignore[assignment]  # the daemon takes false only
    """Push to brokers the client metrics that they subscribe to (KIP-714); needs `penstock[telemetry]`."""
    metrics_sample_window_ms: int = Field(default=30_000, ge=0)
    """Length of one window for the means, maxima and rates of `metrics()`, in ms; 0 means 1."""
    metrics_num_samples: int = Field(default=2, ge=1, le=1_000)
    """Number of windows that means, maxima and rates cover."""
    metrics_recording_level: Literal["INFO", "DEBUG", "TRACE"] = "INFO"
    """`DEBUG` also keeps metrics of single partitions; `TRACE` adds nothing to it."""
    transactional_id: str | None = Field(default=None, min_length=1)
    """Transactional id, which stays the same from one process to the next: a producer that starts with it fences all
    earlier producers with the same id. None: records are sent outside of transactions."""
    transaction_timeout_ms: int = Field(default=60_000, ge=1, le=INT_MAX)
    """How long a transaction may stay open, in ms, before its coordinator aborts it. Brokers allow at most their
    `transaction.max.timeout.ms`."""

    @model_validator(mode="after")
    def _raise_delivery_timeout(self) -> Self:
        """Raise the default delivery timeout to the time that linger and one request may take (CFG-7)."""
        if not self._has_explicit_delivery_timeout and self.delivery_timeout_ms < self.delivery_timeout_min_ms:
            object.__setattr__(self, "delivery_timeout_ms", self.delivery_timeout_min_ms)
        return self

    @property
    def _has_explicit_delivery_timeout(self) -> bool:
        return "delivery_timeout_ms" in self.model_fields_set

    @property
    def delivery_timeout_min_ms(self) -> int:
        """The sum of `linger.ms` and `request.timeout.ms`, in ms."""
        return min(self.linger_ms + self.request_timeout_ms, INT_MAX)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about allowed but probably unintended values, one sentence each."""
        found = super().warnings()
        if not self._has_explicit_delivery_timeout and self.delivery_timeout_ms > _DELIVERY_TIMEOUT_MS:
            least = f"{self.delivery_timeout_ms}, which is linger.ms + request.timeout.ms"
            found += (f"delivery.timeout.ms is raised from its default to {least}",)
        return found


def direct_settings(given: Mapping[str, object]) -> DirectSettings:
    """Check settings and fill in defaults. Names are Kafka's, or written with underscores.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[str] = []
    wrong: set[str] = set()
    values: dict[str, object] = {}
    for name, value in _kept(given, problems):
        try:
            values[name] = _parsed(name, value)
        except ValueError as error:
            problems.append(f"{name} = {redacted(value)}: {error}")
            wrong.add(name)
    settings = _checked({**values, **_placeholder_settings(values, wrong, problems)}, problems, wrong)
    problems += (rule.message for rule in _across(settings) if not wrong & set(rule.names))
    problems += file_problems(settings)
    if problems:
        raise ConfigError(problems)
    if not settings.client_id:
        name = str(next(_numbers)) if settings.transactional_id is None else settings.transactional_id
        settings = settings.model_copy(update={"client_id": f"producer-{name}"})
    return settings


def _kept(given: Mapping[str, object], problems: list[str]) -> Iterator[tuple[str, object]]:
    """Yield the given settings that exist, under Kafka's names; add the others to `problems`."""
    attributes = {attribute: field.alias or attribute for attribute, field in DirectSettings.model_fields.items()}
    known = set(attributes.values())
    refusals = OTHER_CLIENTS_NAMES | DIRECT_REFUSED
    seen: set[str] = set()
    for key, value in cast("Mapping[object, object]", given).items():
        if not isinstance(key, str):
            problems.append(f"{key!r} is not a setting: names are texts")
            continue
        name = attributes.get(key, key)
        if name in seen:
            problems.append(f"{name} is given twice, as {name} and as {name.replace('.', '_')}: keep one")
        elif name in known:
            seen.add(name)
            yield name, value
        elif (reason := refusals.get(name, refusals.get(name.replace("_", ".")))) is not None:
            problems.append(f"{name} is not kept: {reason}")
        else:
            near = difflib.get_close_matches(name.replace("_", "."), known, n=1, cutoff=0.5)
            problems.append(f"{name} is not a setting" + (f"; the nearest known one is {near[0]}" if near else ""))


def _parsed(name: str, value: object) -> object:
    """Parse a string value as Kafka parses the strings of a properties file.

    Raises:
        ValueError: the value has another type than the setting.
    """
    whole = next(field.annotation for field in DirectSettings.model_fields.values() if field.alias == name)
    kind = _without_none(whole)
    if value is None and kind is not whole:
        return None
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if kind is bool or all(isinstance(choice, bool) for choice in choices or ("",)):
        return _truth(value)
    if kind is int:
        return _whole_number(value)
    if kind is float:
        return _number(value)
    if name in _LISTS and isinstance(value, list | tuple):
        return ",".join(str(entry) for entry in cast("list[object]", value))
    if name == "acks" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if kind is Path and isinstance(value, PurePath):
        return value
    if not isinstance(value, str):
        raise ValueError("a text is wanted")  # noqa: TRY004  (one kind of error for values that cannot be used)
    text = value.strip()
    if kind is Path and not text:
        raise ValueError("the path of a file is wanted")
    return text.lower() if name == "metadata.recovery.strategy" else text


def _without_none(kind: object) -> object:
    """Return the type of an optional setting without None."""
    if get_origin(kind) in (Union, UnionType):
        return next(item for item in get_args(kind) if item is not type(None))
    return kind


def _truth(value: object) -> bool:
    text = value.strip().lower() if isinstance(value, str) else value
    if isinstance(text, bool):
        return text
    if text in ("true", "false"):
        return text == "true"
    raise ValueError("true or false is wanted")


def _whole_number(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
        number = int(value)
    else:
        raise ValueError("a whole number is wanted")
    if abs(number) > _LONG_MAX:
        raise ValueError("a whole number of at most 64 bits is wanted")
    return number


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    raise ValueError("a number is wanted")


def _placeholder_settings(values: Mapping[str, object], wrong: set[str], problems: list[str]) -> dict[str, object]:
    """Report missing brokers and return a placeholder address, so that everything else can be checked."""
    name = "bootstrap.servers"
    if name in values:
        return {}
    if name not in wrong:
        problems.append(f'{name} is missing: say where Kafka is, for example {name} = "{_PLACEHOLDER}"')
        wrong.add(name)
    return {name: _PLACEHOLDER}


def _checked(values: Mapping[str, object], problems: list[str], wrong: set[str]) -> DirectSettings:
    """Return the settings; report invalid values and replace them by their defaults."""
    try:
        return DirectSettings.model_validate(values)
    except ValidationError as error:
        details = error.errors()
    names = {str(detail["loc"][0]) for detail in details}
    problems += (f"{detail['loc'][0]} = {redacted(detail['input'])}: {expectation(detail)}" for detail in details)
    wrong |= names
    stand_ins = {"bootstrap.servers": _PLACEHOLDER} if "bootstrap.servers" in names else {}
    return DirectSettings.model_validate(
        {name: value for name, value in values.items() if name not in names} | stand_ins
    )


def _across(settings: DirectSettings) -> Iterator[RuleViolation]:
    """Yield violations of the rules between settings."""
    yield from rule_violations(settings, settings.bootstrap_servers)
    instead = "; without it write enable.idempotence = false"
    if settings.enable_idempotence and settings.acks != "-1":
        sentence = f"acks = {settings.acks} does not go with idempotence, which needs acks = all{instead}"
        yield RuleViolation(("acks", "enable.idempotence"), sentence)
    if settings.enable_idempotence and settings.retries == 0:
        yield RuleViolation(
            ("retries", "enable.idempotence"),
            f"retries = 0 does not go with idempotence, which needs one at least{instead}",
        )
    if settings.transactional_id is not None and not _is_valid_transactional_id(settings.transactional_id):
        sentence = "transactional.id must be at most 32000 bytes of UTF-8"
        yield RuleViolation(("transactional.id",), sentence)
    if settings.transactional_id is not None and not settings.enable_idempotence:
        sentence = "transactional.id needs idempotence: leave enable.idempotence out, or write true"
        yield RuleViolation(("transactional.id", "enable.idempotence"), sentence)
    least = settings.delivery_timeout_min_ms
    if "delivery_timeout_ms" in settings.model_fields_set and settings.delivery_timeout_ms < least:
        yield RuleViolation(
            ("delivery.timeout.ms", "linger.ms", "request.timeout.ms"),
            f"delivery.timeout.ms = {settings.delivery_timeout_ms} must be at least linger.ms + request.timeout.ms = {least}",
        )
    if settings.partitioner_rack_aware and not settings.client_rack:
        yield RuleViolation(("partitioner.rack.aware", "client.rack"), "partitioner.rack.aware needs client.rack")
    if settings.buffer_memory < settings.batch_size:
        yield RuleViolation(
            ("buffer.memory", "batch.size"),
            f"buffer.memory = {settings.buffer_memory} must be at least batch.size = {settings.batch_size}",
        )


def _is_valid_transactional_id(text: str) -> bool:
    try:
        # The name sent to brokers is a little longer.
        return len(text.encode()) <= 32_000
    except UnicodeEncodeError:
        return False
