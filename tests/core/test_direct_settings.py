"""Settings of the direct producer: every mistake is told at once, and nothing is changed silently."""

from collections.abc import Mapping

import pytest
from penstock.config.direct import DirectSettings, direct_settings
from penstock.config.errors import ConfigError
from penstock.config.kafka_names import DIRECT_REFUSED

BROKERS = {"bootstrap.servers": "localhost:9092"}


def problems(given: Mapping[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        direct_settings(BROKERS | dict(given))
    return caught.value.problems


def problem(given: Mapping[str, object]) -> str:
    (found,) = problems(given)
    return found


def made(**given: object) -> DirectSettings:
    return direct_settings({"bootstrap_servers": "localhost:9092", **given})


def test_all_problems_are_told_at_once_and_each_once() -> None:
    wrong = {
        "linger.msec": 1,
        "batch.size": "many",
        "acks": "1",
        "send.buffer.bytes": -2,
        "ssl.key.password": "secret",
        "client.id": 7,
        "partitioner.rack.aware": "true",
    }
    found = problems(wrong)
    assert len(found) == len(wrong)
    assert any(item.startswith("linger.msec is not a setting; the nearest known one is linger.ms") for item in found)
    assert "batch.size = 'many': a whole number is wanted" in found
    assert any(item.startswith("acks = 1 does not go with idempotence") for item in found)
    assert any(item.startswith("send.buffer.bytes = -2") for item in found)
    assert "ssl.key.password is not kept: a password comes from a file: name it in ssl.key.password.file" in found
    assert "client.id = 7: a text is wanted" in found
    assert "partitioner.rack.aware needs client.rack" in found


def test_a_refused_secret_is_not_repeated() -> None:
    assert "hunter2" not in problem({"sasl.jaas.config": "hunter2"})


def test_missing_brokers_are_told_beside_the_rest() -> None:
    with pytest.raises(ConfigError) as caught:
        direct_settings({"acks": 0})
    missing, acks = caught.value.problems
    assert (
        missing == 'bootstrap.servers is missing: say where Kafka is, for example bootstrap.servers = "localhost:9092"'
    )
    assert acks.startswith("acks = 0")


@pytest.mark.parametrize("servers", ["localhost", "", "a:1,b", ["a:1", "b"], 9092])
def test_brokers_are_named_by_host_and_port(servers: object) -> None:
    assert problem({"bootstrap.servers": servers}).startswith("bootstrap.servers")


def test_brokers_may_be_a_list() -> None:
    assert direct_settings({"bootstrap.servers": ["a:1", "b:2"]}).bootstrap_servers == "a:1,b:2"


def test_texts_of_a_properties_file_are_read_as_kafka_reads_them() -> None:
    settings = made(**{"linger.ms": " 20 ", "enable.idempotence": "TRUE", "retries": "3", "compression.type": " zstd "})
    assert (settings.linger_ms, settings.enable_idempotence, settings.retries) == (20, True, 3)
    assert settings.compression_type == "zstd"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linger.ms", 2.5),
        ("linger.ms", True),
        ("linger.ms", "5 ms"),
        ("linger.ms", None),
        ("linger.ms", 2**63),
        ("linger.ms", "9223372036854775808"),
        ("enable.idempotence", 1),
        ("enable.idempotence", "on"),
        ("compression.type", None),
        ("compression.type", 1),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_is_wanted(name: str, value: object) -> None:
    found = problem({name: value})
    assert found.startswith(f"{name} = {value!r}: ")
    assert found.endswith("is wanted")


def test_names_may_have_underscores() -> None:
    assert made(linger_ms=7).linger_ms == 7
    assert (
        problem({"linger_ms": 7, "linger.ms": 7}) == "linger.ms is given twice, as linger.ms and as linger_ms: keep one"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linger.ms", -1),
        ("batch.size", -1),
        ("buffer.memory", -1),
        ("max.block.ms", -1),
        ("retries", -1),
        ("retries", 2**31),
        ("delivery.timeout.ms", 2**31),
        ("metadata.max.idle.ms", 4_999),
        ("compression.gzip.level", 0),
        ("compression.gzip.level", 10),
        ("compression.lz4.level", 0),
        ("compression.lz4.level", 18),
        ("compression.zstd.level", 23),
        ("compression.zstd.level", -131_073),
        ("max.in.flight.requests.per.connection", 0),
        ("client.dns.lookup", "resolve_canonical_bootstrap_servers_only"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(name: str, value: object) -> None:
    assert problem({name: value}).startswith(f"{name} = {value!r}: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linger.ms", 0),
        ("max.block.ms", 0),
        ("metadata.max.idle.ms", 5_000),
        ("compression.gzip.level", -1),
        ("compression.gzip.level", 9),
        ("compression.lz4.level", 17),
        ("compression.zstd.level", -131_072),
        ("max.in.flight.requests.per.connection", 5),
        ("metadata.recovery.rebootstrap.trigger.ms", 0),
    ],
)
def test_a_value_at_the_edge_of_its_range_is_taken(name: str, value: int) -> None:
    assert getattr(made(**{name: value}), name.replace(".", "_")) == value


def test_a_batch_size_of_nothing_means_a_record_a_batch() -> None:
    assert made(batch_size=0).batch_size == 1


def test_a_linger_beyond_what_java_counts_is_cut_to_it() -> None:
    settings = made(linger_ms=2**40)
    assert settings.linger_ms == 2**31 - 1
    assert settings.delivery_timeout_ms == 2**31 - 1


def test_memory_for_less_than_a_batch_is_refused() -> None:
    assert "buffer.memory = 16383" in problem({"buffer.memory": 16_383})
    assert made(buffer_memory=16_384).buffer_memory == 16_384


def test_a_first_reconnect_wait_alone_is_the_longest_one_too() -> None:
    assert made(reconnect_backoff_ms=5_000).reconnect_backoff_max_ms == 5_000
    assert made(**{"reconnect.backoff.ms": "20"}).reconnect_backoff_max_ms == 20
    both = made(reconnect_backoff_ms=5_000, reconnect_backoff_max_ms=7_000)
    assert both.reconnect_backoff_max_ms == 7_000
    assert made().reconnect_backoff_max_ms == 1_000


def test_a_first_wait_beyond_the_longest_is_cautioned() -> None:
    (retry,) = made(retry_backoff_ms=2_000).warnings()
    assert retry == "retry.backoff.ms = 2000 exceeds retry.backoff.max.ms = 1000: it is 1000 ms every time"
    (setup,) = made(socket_connection_setup_timeout_ms=40_000).warnings()
    assert setup.startswith("socket.connection.setup.timeout.ms = 40000 exceeds")
    assert made().warnings() == ()


def test_the_default_delivery_time_out_makes_room_with_a_caution() -> None:
    settings = made(request_timeout_ms=130_000)
    assert settings.delivery_timeout_ms == 130_005
    (caution,) = settings.warnings()
    assert caution.startswith("delivery.timeout.ms is raised from its default to 130005")
    explicit = made(request_timeout_ms=130_000, delivery_timeout_ms=130_005)
    assert (explicit.delivery_timeout_ms, explicit.warnings()) == (130_005, ())


def test_producers_without_a_name_are_numbered() -> None:
    first, second = made(), made()
    assert [name.rpartition("-")[0] for name in (first.client_id, second.client_id)] == ["producer"] * 2
    assert int(second.client_id.rpartition("-")[2]) == int(first.client_id.rpartition("-")[2]) + 1
    assert made(client_id="billing").client_id == "billing"


@pytest.mark.parametrize("name", sorted(DIRECT_REFUSED))
def test_what_is_not_kept_is_refused_with_its_reason(name: str) -> None:
    assert problem({name: "x"}) == f"{name} is not kept: {DIRECT_REFUSED[name]}"
