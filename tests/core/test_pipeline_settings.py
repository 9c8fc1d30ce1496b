"""The pipeline's settings: what is read, what is refused and in which words, and what Java's clients are told."""

from pathlib import Path

import pytest
from penstock.config.durations import seconds_of
from penstock.config.errors import ConfigError
from penstock.config.pipeline import PipelineSettings, load_pipeline, validate_pipeline
from penstock.config.pipeline_kafka import connector_options
from penstock.config.toml_files import Table

ROOT = Path(__file__).resolve().parents[2]
SECRET = "no-one-may-see-this"
PEM = "-----BEGIN {0}-----\nMIIB\n-----END {0}-----\n"


def table(**sections: object) -> Table:
    least: Table = {
        "tables": "/data/tables",
        "checkpoints": "/data/checkpoints",
        "kafka": {"bootstrap.servers": "localhost:9092"},
        "topics": {"events": {}},
    }
    return {**least, **sections}


def settings(**sections: object) -> PipelineSettings:
    return validate_pipeline(table(**sections), "pipeline.toml")


def problems(**sections: object) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        _ = settings(**sections)
    return raised.value.problems


def secret(folder: Path, name: str, text: str) -> str:
    path = folder / name
    _ = path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_the_least_file_has_the_defaults_of_the_design() -> None:
    land = settings().land
    assert (land.trigger, land.starting_offsets, land.fail_on_data_loss) == ("30000 milliseconds", "earliest", True)
    assert (land.max_offsets_per_trigger, land.min_offsets_per_trigger) == (1_000_000, 100_000)
    assert (land.max_trigger_delay, land.isolation, land.dedupe) == ("300000ms", "read_committed", "off")
    assert settings().writer == "delta-rs"
    assert settings().audit.topic == "penstock.audit"
    assert settings().seal.grace == 24 * 3_600


def test_names_with_dots_are_read_back_from_tables_in_tables(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    _ = file.write_text(
        'tables = "/t"\ncheckpoints = "/c"\n[kafka]\nbootstrap.servers = "a:1"\nfetch.max.bytes = 100\n'
        '[topics."clicks.web"]\nformat = "json"\nschema = "id long"\n[spark]\nexecutor.memory = "1g"\nspark.ui.enabled = false\n'
    )
    found = load_pipeline(file)
    assert connector_options(found.kafka) == {"kafka.bootstrap.servers": "a:1", "kafka.fetch.max.bytes": "100"}
    assert found.spark == {"spark.executor.memory": "1g", "spark.ui.enabled": "false"}
    assert found.topics["clicks.web"].schema_ == "id long"


def test_drop_ins_of_the_file_are_merged_and_a_setting_given_twice_names_both(tmp_path: Path) -> None:
    file, drop_in = tmp_path / "pipeline.toml", tmp_path / "pipeline.conf.d" / "more.toml"
    drop_in.parent.mkdir()
    _ = file.write_text('tables = "/t"\ncheckpoints = "/c"\nkafka.bootstrap.servers = "a:1"\n')
    _ = drop_in.write_text("[topics.a]\n")
    assert list(load_pipeline(file).topics) == ["a"]
    _ = drop_in.write_text('tables = "/u"\n[topics.a]\n')
    with pytest.raises(ConfigError, match=f"tables is set in {file} and again in {drop_in}: keep one"):
        _ = load_pipeline(file)


def test_every_problem_is_told_at_once_with_file_key_and_the_nearest_name() -> None:
    found = problems(
        kafka={"bootstrap.servers": "localhost:9092", "fetch.max.byte": 1, "securty.protocol": "SSL"},
        land={"maxOffsetPerTrigger": 4, "trigger": "soon", "isolation": "none"},
        topics={"events": {"format": "json"}},
        tabels="/x",
    )
    told = "\n".join(found)
    assert all(problem.startswith("pipeline.toml: ") for problem in found)
    assert "kafka.fetch.max.byte is not a setting; the nearest known one is kafka.fetch.max.bytes" in told
    assert "kafka.securty.protocol is not a setting; the nearest known one is kafka.security.protocol" in told
    assert "land.maxOffsetPerTrigger is not a setting; the nearest known one is land.maxOffsetsPerTrigger" in told
    assert "land.trigger = 'soon': a time such as 30s is wanted, or once" in told
    assert "land.isolation = 'none'" in told
    assert 'format = "json" needs schema or schema_file' in told
    assert "tabels is not a setting; the nearest known one is tables" in told


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("isolation.level", "read_uncommitted", "write isolation under [land]"),
        ("group.id", "mine", "no consumer group is joined"),
        ("auto.offset.reset", "latest", "write startingOffsets under [land]"),
        ("sasl.jaas.config", SECRET, "name it in sasl.jaas.config.file"),
        ("ssl.key.password", SECRET, "name it in ssl.key.password.file"),
        ("sasl.password", SECRET, "name it in sasl.password.file"),
    ],
)
def test_what_the_connector_must_not_be_told_is_refused_with_what_to_write_and_without_the_value(
    name: str, value: str, said: str
) -> None:
    [problem] = problems(kafka={"bootstrap.servers": "localhost:9092", name: value})
    assert f"kafka.{name} is not kept" in problem
    assert said in problem
    assert SECRET not in problem


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"topics": {}}, "topics"),
        ({"topics": {"penstock.audit": {}}}, "topics.penstock.audit: this is the audit topic"),
        ({"topics": {"a": {"format": "variant"}}}, 'topics.a.format = "variant" needs writer = "delta-jvm"'),
        ({"topics": {"a": {"format": "raw", "schema": "id int"}}}, 'format = "raw" has no schema'),
        ({"topics": {"a": {"format": "avro", "schema": "x", "schema_file": "y"}}}, "keep one"),
        ({"checkpoints": "/data/tables/"}, "checkpoints must not be the folder of the tables"),
        ({"land": {"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 4}}, "must not exceed"),
        ({"listener": {"listen": "9798"}}, "is not host:port"),
        ({"listener": {"queue_max": 0}}, "listener.queue_max = 0"),
        ({"seal": {"grace": -1}}, "seal.grace = -1"),
        ({"kafka": {"bootstrap.servers": "localhost"}}, "is not host:port"),
        ({"kafka": {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL"}}, "needs sasl.mechanism"),
        ({"kafka": {"bootstrap.servers": "a:1", "security.protocol": "SSL", "tls.insecure": True}}, "tls.insecure"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(sections: dict[str, object], said: str) -> None:
    assert any(said in problem for problem in problems(**sections)), problems(**sections)


def test_lowering_the_most_records_of_a_batch_lowers_the_least_that_nobody_set() -> None:
    assert settings(land={"maxOffsetsPerTrigger": 7}).land.min_offsets_per_trigger == 7


def test_places_are_absolute_for_executors_unless_they_are_urls() -> None:
    found = settings(tables="here/tables", checkpoints="s3a://bucket/checkpoints")
    assert found.tables == str(Path.cwd() / "here/tables")
    assert found.checkpoints == "s3a://bucket/checkpoints"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("5m", 300), ("24h", 86_400), ("7d", 604_800), (12, 12), (0.5, 0.5)],
)
def test_times_have_units_and_without_one_are_seconds(text: object, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "5 weeks", True, None, "-5s"])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="a time is wanted"):
        _ = seconds_of(text)


def test_a_password_becomes_a_login_of_java_with_its_quotes_escaped(tmp_path: Path) -> None:
    kafka = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "land",
        "sasl.password.file": secret(tmp_path, "password", 'a"b\\c\n'),
    }
    options = connector_options(settings(kafka=kafka).kafka)
    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="land" password="a\\"b\\\\c";'
    )
    assert options["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert not any(name.endswith(".file") for name in options)


def test_pem_files_are_given_to_java_by_their_contents_because_executors_have_no_such_files(tmp_path: Path) -> None:
    both = PEM.format("CERTIFICATE") + PEM.format("PRIVATE KEY")
    kafka = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.truststore.location": secret(tmp_path, "trust.pem", PEM.format("CERTIFICATE")),
        "ssl.keystore.location": secret(tmp_path, "both.pem", both),
        "ssl.endpoint.identification.algorithm": "",
    }
    options = connector_options(settings(kafka=kafka).kafka)
    assert options["kafka.ssl.truststore.type"] == options["kafka.ssl.keystore.type"] == "PEM"
    assert options["kafka.ssl.truststore.certificates"] == PEM.format("CERTIFICATE")
    assert options["kafka.ssl.keystore.certificate.chain"] == PEM.format("CERTIFICATE")
    assert options["kafka.ssl.keystore.key"] == PEM.format("PRIVATE KEY")
    assert options["kafka.ssl.endpoint.identification.algorithm"] == ""


def test_a_key_that_java_cannot_read_is_refused_with_how_to_turn_it_and_without_the_key(tmp_path: Path) -> None:
    kafka = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.keystore.location": secret(tmp_path, "c.pem", PEM.format("CERTIFICATE")),
        "ssl.key.location": secret(tmp_path, "k.pem", PEM.format("RSA PRIVATE KEY")),
    }
    with pytest.raises(ConfigError, match="openssl pkcs8 -topk8") as raised:
        _ = connector_options(settings(kafka=kafka).kafka)
    assert "MIIB" not in str(raised.value)


def test_a_login_that_only_java_knows_comes_from_a_file(tmp_path: Path) -> None:
    kafka = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config.file": secret(tmp_path, "jaas", f"some.Module required password={SECRET};"),
        "ssl.truststore.type": "JKS",
        "ssl.truststore.location": "/etc/trust.jks",
    }
    found = settings(kafka=kafka)
    options = connector_options(found.kafka)
    assert options["kafka.sasl.jaas.config"].endswith(f"{SECRET};")
    assert options["kafka.ssl.truststore.location"] == "/etc/trust.jks"
    assert SECRET not in repr(found)


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = Path(secret(tmp_path, "password", SECRET))
    path.chmod(0o644)
    kafka = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "land",
        "sasl.password.file": str(path),
    }
    with pytest.raises(ConfigError, match="chmod 0600") as raised:
        _ = connector_options(settings(kafka=kafka).kafka)
    assert SECRET not in str(raised.value)
