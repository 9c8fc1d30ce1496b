"""What the pages show is run as it stands there, against a whole daemon: examples in Python, fields of `/stats`, metrics, and the
way out of an alarm."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from penstock.client import Producer
from penstock.runtime.metrics import METRICS

from tests.harness.daemon import Daemon
from tests.harness.embedded import EmbeddedCluster
from tests.harness.ports import free_ports
from tests.harness.processes import end, start_tied, tail, wait_until
from tests.harness.readers import read_topic

pytestmark = pytest.mark.process
ROOT: Final = Path(__file__).resolve().parents[2]
BLOCK: Final = re.compile(r"^(?:<!-- not run: (.*?) -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""With the reason why it cannot be run, if there is one in the line before it."""
ROW: Final = re.compile(r"^\| `([\w.*\[\]]+)` \|", re.MULTILINE)
DEFAULT_SOCKET: Final = "/run/penstock/penstock.sock"
# Its examples are messages, and tests/core/test_protocol_page.py checks their bytes.
NO_PROGRAMS: Final = {"docs/reference/protocol.md"}
TOPICS: Final = ("events", "payments", "orders", "clicks")
PRODUCE: Final = 0
BROKERS: Final = "broker-1:9092,broker-2:9092"
FIRST_BROKER: Final = "broker-1:9092"
DIRECT: Final = "DirectProducer("
# Their topics hold more than records, and tests/process/test_transaction_examples.py runs them.
TRANSACTIONAL: Final = "transactional.id"
# Theirs is a broker with TLS and logins: tests/kafka/test_security_page.py runs them.
SECURED: Final = "security.protocol"
HOOKS: Final = "def post_fork("
HOOKS_USED: Final = """
post_fork(None, None)
orders_app.producer.send("orders", b"from a worker").result(timeout=30)
worker_exit(None, None)
"""


class Example(NamedTuple):
    """One block of Python: its page, its place there, what it says."""

    page: str
    number: int
    text: str


def examples() -> list[Example]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found: list[Example] = []
    for page in pages:
        name = str(page.relative_to(ROOT))
        if name not in NO_PROGRAMS:
            found += [
                Example(name, number, text)
                for number, (reason, text) in enumerate(BLOCK.findall(page.read_text()))
                if not reason
            ]
    return found


def test_what_is_not_run_is_no_example_of_the_producers_here() -> None:
    """A reason is for what cannot be had in a test: another library, a real identity provider."""
    for page in (ROOT / "docs").rglob("*.md"):
        for reason, text in BLOCK.findall(page.read_text()):
            if reason:
                assert len(reason.split()) > 2, f"{page}: {reason!r} is no reason"
                compile(text, str(page), "exec")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as running:
        for topic in TOPICS:
            running.create_topic(topic, partitions=3)
        yield running


@pytest.fixture(scope="module")
def daemon(cluster: EmbeddedCluster) -> Iterator[Daemon]:
    with Daemon(cluster.bootstrap) as running:
        running.start()
        yield running


def stats(daemon: Daemon) -> dict[str, Any]:
    status, body = daemon.get("/stats")
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def run(daemon: Daemon, text: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PENSTOCK_SOCKET": str(daemon.socket_path)}
    command = [sys.executable, "-c", text.replace(DEFAULT_SOCKET, str(daemon.socket_path))]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=180, check=False)


def test_the_readme_and_the_pages_about_clients_have_examples() -> None:
    pages = {example.page for example in examples()}
    assert {
        "README.md",
        "docs/tutorial/first-steps.md",
        "docs/howto/clients.md",
        "docs/howto/other-languages.md",
    } <= pages


@pytest.mark.parametrize(
    "example",
    [found for found in examples() if DIRECT not in found.text],
    ids=lambda found: f"{found.page}-{found.number}",
)
def test_an_example_does_what_it_says(daemon: Daemon, example: Example) -> None:
    before = stats(daemon)["records"]["received"]
    text = example.text
    if HOOKS in text:
        text = (
            "import sys, types\norders_app = sys.modules['orders_app'] = types.ModuleType('orders_app')\n"
            + text
            + HOOKS_USED
        )
    done = run(daemon, text)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    records = stats(daemon)["records"]
    assert records["received"] > before
    assert records["refused"] == 0


@pytest.mark.parametrize(
    "example",
    [
        found
        for found in examples()
        if DIRECT in found.text and not any(word in found.text for word in (TRANSACTIONAL, SECURED))
    ],
    ids=lambda found: f"{found.page}-{found.number}",
)
def test_an_example_of_the_direct_producer_does_what_it_says(cluster: EmbeddedCluster, example: Example) -> None:
    before = sum(len(list(read_topic(cluster, topic))) for topic in TOPICS)
    assert FIRST_BROKER in example.text
    text = example.text.replace(BROKERS, cluster.bootstrap).replace(FIRST_BROKER, cluster.bootstrap)
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, text=True, capture_output=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    after = sum(len(list(read_topic(cluster, topic))) for topic in TOPICS)
    assert (after > before) is (".send" in text)


def test_the_client_by_hand_is_told_where_its_records_are(daemon: Daemon) -> None:
    """Twice: the second time the daemon tells which sequence it goes on from."""
    (example,) = (found for found in examples() if found.page == "docs/howto/other-languages.md")
    first, second = run(daemon, example.text).stdout, run(daemon, example.text).stdout
    frames = [
        re.fullmatch(r"frame (\d+) reached level 2 at \[\[\d, \d+, 2, -?\d+\]\] refused: None\n", out)
        for out in (first, second)
    ]
    assert all(frames), first + second
    numbers = [int(frame[1]) for frame in frames if frame]
    assert numbers[1] == numbers[0] + 1


def paths(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field of a document, as names; `[]` for an item of a list."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from paths(item, (*path, str(name)))
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, (*path[:-1], path[-1] + "[]"))
    else:
        yield path


def fits(path: tuple[str, ...], pattern: str) -> bool:
    parts = pattern.split(".")
    return len(parts) == len(path) and all(part in ("*", name) for part, name in zip(parts, path, strict=True))


def complete(told: dict[str, Any]) -> dict[str, Any] | None:
    """The stats, once they have an alarm and what a shard says of its broker."""
    return told if told["alarms"] and "state" in told["nodes"][0] else None


def test_every_field_of_stats_is_on_its_page_and_every_one_of_the_page_is_there(
    cluster: EmbeddedCluster, daemon: Daemon
) -> None:
    """With a session open and a partition that waits, so that lists have items."""
    cluster.create_topic("forbidden", partitions=1)
    node = cluster.nodes[0]
    page = ROW.findall((ROOT / "docs/reference/stats.md").read_text())
    with Producer(daemon.socket_path, client_id="looked-at") as producer:
        producer.send("forbidden", b"first").result(60)
        assert node.command(op="fail_next", api=PRODUCE, error="TOPIC_AUTHORIZATION_FAILED", times=-1) == {"ok": True}
        waiting = producer.send("forbidden", b"second")
        found = wait_until(lambda: complete(stats(daemon)), seconds=30, what="an alarm, and a shard's word")
        _ = node.command(op="clear")
        waiting.result(90)
    there = set(paths(found))
    assert {path for path in there if not any(fits(path, pattern) for pattern in page)} == set()
    # What varies need not be there, nor what a shard has queued, nor what was switched off, as nothing was.
    assert found["security"]["insecure"] == []
    varies = ("shards[].partitions[]", "security.insecure[]")
    certain = [pattern for pattern in page if not pattern.endswith("*") and not pattern.startswith(varies)]
    assert [pattern for pattern in certain if not any(fits(path, pattern) for path in there)] == []
    assert len(certain) > 70


def test_every_metric_that_is_declared_is_shown_and_no_other(daemon: Daemon) -> None:
    shown = set(re.findall(r"^# TYPE (\w+) ", daemon.get("/metrics")[1], re.MULTILINE))
    declared = {metric.name + ("_total" if metric.kind == "counter" else "") for metric in METRICS}
    assert shown == declared


def test_a_partition_whose_broker_lost_its_log_waits_and_goes_on_when_it_is_told_to() -> None:
    """The way out that docs/howto/operate.md names: records of the outage arrive in order, and doubles are counted."""
    with (
        EmbeddedCluster(1, arguments=("--topic", "events:1")) as cluster,
        Daemon(cluster.bootstrap, shards=1) as daemon,
    ):
        daemon.start()
        with Producer(daemon.socket_path, client_id="patient") as producer:
            for number in range(3):
                producer.send("events", b"before %d" % number).result(60)
            # In memory: its whole log is gone, and with it what it acknowledged.
            cluster.nodes[0].kill()
            cluster.nodes[0].start()
            during = [producer.send("events", b"during %d" % number, level="spooled") for number in range(3)]
            for future in during:
                future.result(60)
            (alarm,) = wait_until(lambda: stats(daemon)["alarms"] or None, seconds=60, what="the loss is noticed")
            assert alarm["reason"] in ("halted", "offset_below_anchor", "gap")
            assert stats(daemon)["records"]["pending"] == 3
            resend = [sys.executable, "-I", "-m", "penstock.cli.main", "resend", "events", "0"]
            resend += ["--runtime-dir", str(daemon.folder / "run")]
            # A partition that is just being tried again is not blocked.
            done = wait_until(lambda: succeeded(resend), seconds=60, what="it is sent again")
            assert done.stdout == "events-0 resumed; see possible_duplicates in the log\n"
            wait_until(lambda: stats(daemon)["records"]["pending"] == 0, seconds=60, what="everything is delivered")
            assert producer.send("events", b"after").result(60).partition == 0
        arrived = [record.value for record in read_topic(cluster, "events")]
        doubled = stats(daemon)["records"]["possible_duplicates"]
        assert list(dict.fromkeys(arrived)) == [*(b"during %d" % number for number in range(3)), b"after"]
        assert 0 <= len(arrived) - 4 <= doubled
        assert "possible_duplicates" in daemon.log_path.read_text()
        assert stats(daemon)["alarms"] == []


def succeeded(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """What a command said, or None when it could not be done."""
    done = subprocess.run(command, text=True, capture_output=True, timeout=180, check=False)
    return done if done.returncode == 0 else None


def test_the_commands_of_the_tutorial_start_a_daemon_and_send_to_it(tmp_path: Path) -> None:
    """As it says, but for the folder and the ports, which others may hold."""
    text = (ROOT / "docs/tutorial/first-steps.md").read_text()
    assert ".venv/bin/penstock run --embedded-broker --topic payments:3\n" in text
    assert ".venv/bin/penstock send payments hello world\n" in text
    exporter, broker = free_ports(2)
    config = tmp_path / "penstock.toml"
    config.write_text(
        f'data_dir = "{tmp_path}/data"\nruntime_dir = "{tmp_path}/run"\n'
        f'[kafka]\nbootstrap.servers = "taken-from-the-brokers:1"\n[exporter]\nlisten = "127.0.0.1:{exporter}"\n'
    )
    penstock = [sys.executable, "-I", "-m", "penstock.cli.main"]
    options = ("--embedded-broker", "--broker-port", str(broker), "--topic", "payments:3")
    log = tmp_path / "log"
    with log.open("wb") as file:
        started = start_tied(
            [*penstock, "run", "--config", str(config), *options],
            stdout=file,
            stderr=file,
        )
    try:
        socket_path = tmp_path / "run/penstock.sock"
        _ = wait_until(lambda: socket_path.exists() or None, seconds=30, what="the socket is there")
        environment = {**os.environ, "PENSTOCK_SOCKET": str(socket_path)}
        done = subprocess.run(
            [*penstock, "send", "payments", "hello", "world"],
            env=environment,
            text=True,
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "2 of 2 records delivered\n"), done.stderr + tail(log)
        assert "NOT FOR PRODUCTION" in log.read_text()
    finally:
        assert end(started, seconds=60) == 0
