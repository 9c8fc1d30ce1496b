"""`penstock-pipeline` as people and schedulers meet it: exit codes, one line for what is to be expected, nothing secret."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.config.errors import ConfigError
from penstock.pipeline.exits import PipelineExit
from penstock.pipeline.failures import JobRefusedError, failure_message, is_expected
from penstock.producer import DirectProducer
from pyspark.errors import AnalysisException, PySparkKeyError

from tests.harness.kafka_cluster import OwnCluster
from tests.harness.spark_driver import Ended, Pipeline

SECRET = "no-one-may-see-this"
NOWHERE = "127.0.0.1:1"


def lines(ended: Ended) -> list[str]:
    return ended.log.strip().splitlines()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "penstock.pipeline.cli", *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_wrong_settings_end_with_2_and_every_problem_on_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    _ = file.write_text('tables = "/t"\nkafka.bootstrap.servers = "a:1"\n[land]\ntriger = "1s"\n[topics.a]\n')
    ended = command("land", "--config", str(file))
    assert ended.returncode == PipelineExit.USAGE
    assert ended.stderr.splitlines() == [
        f"penstock-pipeline: {file}: checkpoints is missing",
        f"penstock-pipeline: {file}: land.triger is not a setting; the nearest known one is land.trigger",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("land", "--config", "/no/such/file"), "there is no such file"),
        (("land", "--no-such-option"), "No such option"),
        (("retire", "xyz"), "is no incarnation"),
    ],
)
def test_wrong_options_end_with_2(words: tuple[str, ...], said: str) -> None:
    ended = command(*words)
    assert ended.returncode == PipelineExit.USAGE
    assert said in ended.stderr


def test_what_is_asked_for_and_not_in_the_settings_or_no_hour_is_said_before_anything_starts() -> None:
    with Pipeline(NOWHERE, {"a": {}, "b": {}}) as pipeline:
        ended = pipeline.run("land", "--topic", "c")
        assert (ended.status, lines(ended)) == (
            PipelineExit.USAGE,
            ["penstock-pipeline: --topic c: the settings have no such topic, but a, b"],
        )
        ended = pipeline.run("audit", "--from", "yesterday")
        assert ended.status == PipelineExit.USAGE
        assert "'yesterday' is not an hour of the form YYYY-MM-DD-HH" in ended.log


@pytest.mark.parametrize("verb", ["land", "audit", "check"])
def test_brokers_that_are_not_there_are_told_in_one_line(verb: str) -> None:
    with Pipeline(NOWHERE, {"a": {}}) as pipeline:
        text = pipeline.config_path.read_text()
        _ = pipeline.config_path.write_text(f"kafka_timeout = 0.5\n{text}")
        # Not by the harness: `check` needs no master.
        ended = command(verb, "--config", str(pipeline.config_path))
    assert ended.returncode == PipelineExit.FAILED
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"penstock-pipeline: no broker of kafka.bootstrap.servers = {NOWHERE} can be used: ")


def test_check_tells_of_jars_and_brokers_together(tmp_path: Path) -> None:
    with Pipeline(NOWHERE, {"a": {}}) as pipeline:
        text = pipeline.config_path.read_text()
        _ = pipeline.config_path.write_text(f'kafka_timeout = 0.5\njars = "{tmp_path}"\n{text}')
        ended = command("check", "--config", str(pipeline.config_path))
    assert ended.returncode == PipelineExit.USAGE
    jars, brokers = ended.stderr.splitlines()
    assert jars.startswith(f"penstock-pipeline: jars: no jars in {tmp_path}: ")
    assert brokers.startswith(f"penstock-pipeline: no broker of kafka.bootstrap.servers = {NOWHERE} can be used: ")


def test_a_topic_that_is_not_there_is_told_in_one_line(broker: OwnCluster) -> None:
    with Pipeline(broker.bootstrap, {"no.such": {}}) as pipeline:
        ended = pipeline.run("land", "--once")
    assert (ended.status, lines(ended)) == (
        PipelineExit.FAILED,
        ["penstock-pipeline: Kafka has no topic no.such, or does not show it to this user"],
    )


def test_the_printed_line_is_quoted_and_has_no_secret_in_it(tmp_path: Path) -> None:
    password = tmp_path / "password"
    _ = password.write_text(SECRET)
    password.chmod(0o600)
    sections = {
        "kafka": {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "land",
            "sasl.password.file": str(password),
        },
        "spark": {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.executor.extraJavaOptions": "-Da='b c' -Dd=$HOME"},
    }
    with Pipeline(NOWHERE, {"a": {}}, sections=sections, master="spark://host:7077") as pipeline:
        printed = pipeline.run("land", "--once", "--topic", "a", "--print-submit")
        config = str(pipeline.config_path)
    assert printed.status == PipelineExit.OK, printed.log
    assert SECRET not in printed.output + printed.log
    words = shlex.split(printed.output)
    assert "spark.executor.extraJavaOptions=-Da='b c' -Dd=$HOME" in words
    assert words[words.index("--master") + 1] == "spark://host:7077"
    assert all(Path(jar).exists() for jar in words[words.index("--jars") + 1].split(","))
    assert words[-7:] == ["land", "--once", "--topic", "a", "--config", config, "--submitted"]
    assert Path(words[-8]).exists()


def test_land_ends_in_order_when_it_is_told_to_and_does_not_start_over_another_querys_rows(
    broker: OwnCluster, topic_name: str
) -> None:
    broker.create_topic(topic_name, partitions=1)
    producer = DirectProducer({"bootstrap.servers": broker.bootstrap})
    _ = producer.send(topic_name, b"one").result(60)
    producer.close(10)
    with Pipeline(broker.bootstrap, {topic_name: {"format": "raw"}}) as pipeline:
        driver = pipeline.start("land")
        driver.wait_batch(topic_name, 0)
        driver.process.send_signal(signal.SIGINT)
        ended = driver.wait(seconds=60)
        assert ended.status == PipelineExit.OK, ended.log
        events = [json.loads(line) for line in lines(ended) if not line.startswith("WARNING: Using incubator")]
        assert [event["event"] for event in events if event["process"] == "pipeline"] == ["land_started", "land_ended"]
        assert events[-1]["by_signal"] is True

        shutil.rmtree(pipeline.checkpoints)
        ended = pipeline.run("land", "--once")
        assert ended.status == PipelineExit.FAILED
        [told] = [line for line in lines(ended) if line.startswith("penstock-pipeline: ")]
        assert "has rows of another query" in told
        assert "Traceback" not in ended.log
        assert "\tat " not in ended.log


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server…", "Kafka has no such topic"),
        ("Some data may have been lost because they are not available in Kafka", "retention ran ahead of the job"),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log", "another driver uses this checkpoint"),
        ("All masters are unresponsive! Giving up.", "the Spark master cannot be reached"),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", "the JVM did not start: Java 17"),
        ("org.apache.kafka.common.errors.SaslAuthenticationException: no", "do not believe each other"),
        ("Failed to find data source: kafka. Make sure", "no Kafka connector"),
        ("Answer from Java side is empty", "the JVM has ended: out of memory"),
    ],
)
def test_what_spark_and_kafka_say_is_told_with_what_it_means(text: str, said: str) -> None:
    told = failure_message(AnalysisException(f"{text}\n\tat org.apache.Some.where(Some.scala:1)\nCaused by: more"))
    assert said in told
    assert "Some.scala" not in told


def test_what_a_python_worker_raised_is_told_without_its_trace() -> None:
    text = "[PYTHON_EXCEPTION] A worker: Traceback (most recent call last):\n  File x, line 1\nValueError: bad thing\n\tat org.X"
    assert failure_message(AnalysisException(text)) == "[PYTHON_EXCEPTION] A worker: ValueError: bad thing"


def test_only_what_comes_from_outside_is_told_without_a_trace() -> None:
    assert is_expected(JobRefusedError("no"))
    assert is_expected(ConfigError(["no"]))
    assert is_expected(FileNotFoundError("x"))
    assert is_expected(AnalysisException("x"))
    assert not is_expected(AssertionError("ours"))
    assert not is_expected(KeyError("ours"))
    assert not is_expected(PySparkKeyError("ours"))
