"""The daemon's metrics against a known load and known trouble, as Prometheus is shown them."""

import re
from typing import Final

import pytest
from penstock.client import Producer

from tests.harness.daemon import Daemon
from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until

pytestmark = pytest.mark.process
WAIT_S: Final = 60.0
PRODUCE: Final = 0
LINE: Final = re.compile(r"^(\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


def shown(daemon: Daemon) -> dict[str, float]:
    """Every sample, by its name and labels as they are written."""
    return {name: float(value) for name, value in LINE.findall(daemon.get("/metrics")[1])}


def wait_for(daemon: Daemon, name: str, least: float) -> dict[str, float]:
    """Loads of shards are up to a second old."""
    wait_until(lambda: shown(daemon).get(name, 0) >= least, seconds=WAIT_S, what=f"{name} of {least}")
    return shown(daemon)


def test_figures_are_those_of_what_was_sent_refused_sent_again_and_killed() -> None:
    with (
        EmbeddedCluster(1, arguments=("--topic", "events:1")) as cluster,
        Daemon(cluster.bootstrap, shards=1) as daemon,
    ):
        daemon.start()
        node = cluster.nodes[0]
        with Producer(daemon.socket_path, client_id="counted") as producer:
            for number in range(50):
                producer.send("events", b"%d" % number)
            producer.flush(WAIT_S)
            told = wait_for(daemon, "penstock_records_delivered_total", 50)
            assert told["penstock_records_received_total"] == told["penstock_records_delivered_total"] == 50
            assert told["penstock_records_pending"] == told["penstock_spool_unsynced_records"] == 0
            assert told["penstock_records_dead_lettered_total"] == 0
            for name in (
                "penstock_out_of_order_records_total",
                "penstock_log_end_probes_total",
                "penstock_possible_duplicates_total",
            ):
                assert told[name] == 0, name
            assert {name: value for name, value in told.items() if name.startswith("penstock_process_restarts")} == {
                f'penstock_process_restarts_total{{process="{process}"}}': 0
                for process in ("router", "shard-0", "exporter")
            }
            # Twice refused for the moment: the batch is sent again as often.
            assert node.command(op="fail_next", api=PRODUCE, error="NOT_ENOUGH_REPLICAS", times=2)["ok"]
            _ = producer.send("events", b"again").result(WAIT_S)
            told = wait_for(daemon, 'penstock_retries_total{reason="not_enough_replicas"}', 2)
            assert told['penstock_retries_total{reason="not_enough_replicas"}'] == 2
            # The answer is lost with its connection.
            assert node.command(op="cut_answer", api=PRODUCE, keep=0, times=1)["ok"]
            _ = producer.send("events", b"unanswered").result(WAIT_S)
            told = wait_for(daemon, 'penstock_retries_total{reason="connection_lost"}', 1)
            assert told['penstock_retries_total{reason="connection_lost"}'] == 1
            assert told["penstock_records_delivered_total"] == 52
            before = wait_for(daemon, 'penstock_batches_total{outcome="acked"}', 3)
            # Killed, and started again.
            _ = daemon.kill("shard-0")
            daemon.wait_ready()
            _ = producer.send("events", b"after").result(WAIT_S)
            told = wait_for(daemon, 'penstock_process_restarts_total{process="shard-0"}', 1)
            assert told['penstock_process_restarts_total{process="shard-0"}'] == 1
            assert told['penstock_process_restarts_total{process="router"}'] == 0
            assert told["penstock_records_received_total"] == told["penstock_records_delivered_total"] == 53
            # Counters go on: they fall with the router only.
            told = wait_for(
                daemon, 'penstock_batches_total{outcome="acked"}', before['penstock_batches_total{outcome="acked"}'] + 1
            )
            totals = [name for name in before if name.partition("{")[0].endswith("_total") and "_cpu_" not in name]
            assert [name for name in totals if told[name] < before[name]] == []
            _ = daemon.kill("router")
            daemon.wait_ready()
            _ = producer.send("events", b"after that").result(WAIT_S)
            told = wait_for(daemon, 'penstock_process_restarts_total{process="router"}', 1)
            assert told['penstock_process_restarts_total{process="router"}'] == 1
