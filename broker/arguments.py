"""The broker's command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from . import settings as checks
from .cluster.node import BrokerNodeLimits
from .log.batches import Verify
from .replication.replicated_cluster import ClusterTiming
from .settings import BrokerSettings, SettingsError

WARNING: Final = (
    "penstock broker: NOT FOR PRODUCTION. Nothing is ever synced to disk, and nobody is asked who he is. "
    "For trying Penstock out and for tests."
)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(prog="penstock.broker", description=WARNING)
    add = parser.add_argument
    _ = add("--node-id", type=int, default=0)
    _ = add("--listen", default="127.0.0.1:9092", metavar="HOST:PORT")
    _ = add("--nodes", default="", metavar="0@HOST:PORT,…", help="all nodes of the cluster; default: this one alone")
    _ = add("--cluster", type=int, default=0, metavar="N", help="be N nodes with replicas in one process, in memory")
    _ = add("--replica-lag-ms", type=int, default=30_000, help="with --cluster: a slower follower is out of sync")
    _ = add("--session-ms", type=int, default=9_000, help="with --cluster: a node not heard of for so long is dead")
    _ = add("--log-dir", type=Path, help="keep the log in this folder; default: in memory")
    _ = add("--catalogue-dir", type=Path, help="list of topics; several nodes share one")
    _ = add("--topic", action="append", default=[], metavar="NAME:PARTITIONS[:SETTING=VALUE…]")
    _ = add("--auto-create-topics", action="store_true")
    _ = add("--default-partitions", type=int, default=1)
    _ = add("--log-bytes-max", type=int, default=BrokerNodeLimits().log_bytes_max)
    _ = add("--verify", choices=[verify.value for verify in Verify], default=Verify.RECORDS.value)
    _ = add("--producer-id-expiration-ms", type=int, default=BrokerNodeLimits().producer_id_expiration_ms)
    _ = add("--producer-id-check-interval-ms", type=int, default=600_000)
    _ = add("--transaction-version", type=int, choices=[0, 1, 2], default=BrokerNodeLimits().transaction_version)
    _ = add("--transaction-timeout-max-ms", type=int, default=BrokerNodeLimits().transaction_timeout_max_ms)
    _ = add("--transaction-check-interval-ms", type=int, default=10_000, help="between two looks for old transactions")
    _ = add("--marker-delay-ms", type=int, default=0, help="from the end of a transaction to its markers")
    _ = add("--request-bytes-max", type=int, default=checks.REQUEST_BYTES_MAX)
    _ = add("--control", action="store_true", help="take commands for faults on standard input")
    _ = add("--ready-fd", type=int, help="descriptor for the line that says ready; default: standard output")
    return parser


def parse(arguments: Sequence[str]) -> BrokerSettings:
    """Turn command line arguments into settings.

    Raises:
        SettingsError: they are wrong.
        SystemExit: argparse rejects them.
    """
    given = parser().parse_args(arguments)
    try:
        host, port = checks.parse_address(given.listen)
        settings = BrokerSettings(
            node_id=given.node_id,
            host=host,
            port=port,
            nodes=checks.parse_nodes(given.nodes) if given.nodes else (),
            log_dir=given.log_dir,
            catalogue_dir=given.catalogue_dir,
            cluster=given.cluster,
            timing=ClusterTiming(session_s=given.session_ms / 1000, lag_s=given.replica_lag_ms / 1000),
            topics=tuple(checks.parse_topic(text) for text in given.topic),
            request_bytes_max=given.request_bytes_max,
            control=given.control,
            ready_fd=given.ready_fd,
        )
    except ValueError as error:
        raise SettingsError([str(error)]) from error
    limits = BrokerNodeLimits(
        auto_create_topics=given.auto_create_topics,
        default_partitions=given.default_partitions,
        default_replicas=min(3, max(1, given.cluster)),
        log_bytes_max=given.log_bytes_max,
        verify=Verify(given.verify),
        producer_id_expiration_ms=given.producer_id_expiration_ms,
        producer_id_check_interval_s=given.producer_id_check_interval_ms / 1000,
        transaction_version=given.transaction_version,
        transaction_timeout_max_ms=given.transaction_timeout_max_ms,
        transaction_check_interval_s=given.transaction_check_interval_ms / 1000,
        marker_delay_ms=given.marker_delay_ms,
    )
    return replace(settings, limits=limits)
