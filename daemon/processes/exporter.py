"""The exporter: `python -I -m penstock.daemon.processes.exporter --settings PATH`. Metrics, health and readiness.

It serves loopback only, requests every page from the router and keeps no state. Its standard output is supervisord's
clock: an empty line every 100 ms makes supervisord check its processes at once instead of once a second.
"""

import argparse
import ipaddress
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from ...config import handover
from ...runtime import logs
from ...runtime.process import JOURNAL_FD, ExitCode, exit_with_parent, require_assertions
from ...runtime.starts import record_start
from .control_client import ControlError, ask
from .metric_families import families

TICK_S: Final = 0.1
ASK_S: Final = 3.0
_JSON: Final = "application/json"
_DEGRADED_SPOOL: Final = 0.8


class RouterCollector(Collector):
    """Requests the router's stats once per scrape."""

    def __init__(self, control: Path) -> None:
        self._control = control

    def collect(self) -> Iterable[Family]:
        """All metric families, or only `penstock_up` 0 when the router does not answer."""
        try:
            stats = cast("dict[str, Any] | None", ask(self._control, "stats", timeout_s=ASK_S))
        except ControlError:
            stats = None
        return list(families(stats))


class ExporterPages(BaseHTTPRequestHandler):
    """The HTTP pages. A broker outage does not make the daemon unhealthy: records wait in the spool."""

    control: Path
    registry: CollectorRegistry
    timeout = 10

    def do_GET(self) -> None:
        """Answer one request."""
        pages = {"/metrics": self._metrics, "/healthz": self._health, "/ready": self._ready, "/stats": self._stats}
        page = pages.get(self.path.partition("?")[0])
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"there are {', '.join(pages)}\n".encode())
            return
        try:
            page()
        except ControlError as error:
            self._answer_json(HTTPStatus.SERVICE_UNAVAILABLE, {"ok": False, "reasons": [str(error)]})

    def _metrics(self) -> None:
        self._answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self.registry))

    def _health(self) -> None:
        stats = self._ask("stats")
        dead = [f"shard {shard['shard']} is not there" for shard in stats["shards"] if shard["pid"] is None]
        status = HTTPStatus.SERVICE_UNAVAILABLE if dead else HTTPStatus.OK
        self._answer_json(status, {"ok": not dead, "reasons": dead, "degraded": degraded(stats)})

    def _ready(self) -> None:
        told = self._ask("ready")
        self._answer_json(HTTPStatus.OK if told["ready"] else HTTPStatus.SERVICE_UNAVAILABLE, told)

    def _stats(self) -> None:
        self._answer_json(HTTPStatus.OK, self._ask("stats"))

    def _ask(self, verb: str) -> dict[str, Any]:
        return cast("dict[str, Any]", ask(self.control, verb, timeout_s=ASK_S))

    def _answer_json(self, status: HTTPStatus, value: object) -> None:
        self._answer(status, _JSON, json.dumps(value, default=str).encode() + b"\n")

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        _ = self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name http.server gives
        """Requests are not logged."""


def degraded(stats: dict[str, Any]) -> list[str]:
    """Degraded conditions, one sentence each."""
    found = [f"{alarm['topic']}-{alarm['partition']}: {alarm['text']}" for alarm in stats["alarms"]]
    found += stats["security"]["insecure"]
    if not stats["metadata"]["connected"]:
        found.append("no broker answers: records wait in the spool")
    found += [f"{subject}: {text}" for subject, text in stats["metadata"]["problems"].items()]
    found += [
        f"node {node['node']} ({node['host']}:{node['port']}): {node['state']}, {node['last_error']}"
        for node in stats["nodes"]
        if node.get("last_error") and node.get("state") != "ready"
    ]
    audit = stats["audit"]
    if audit["last_error"] is not None:
        found.append(f"nothing is told to the audit: {audit['last_error']}; penstock audit create-topic makes it")
    if audit.get("dropped_minutes"):
        found.append(f"{audit['dropped_minutes']:,} minutes of the audit were forgotten untold (audit.ranges_max)")
    spool = stats["spool"]
    if spool["bytes"] > _DEGRADED_SPOOL * spool["bytes_max"] and spool["pending_slices"]:
        found.append(f"the spool holds {spool['bytes']:,} of {spool['bytes_max']:,} bytes")
    return found


def serve(listen: str, control: Path) -> ThreadingHTTPServer:
    """Return a bound server of the pages.

    Raises:
        OSError: the address is in use or not local.
        ValueError: the address is not loopback.
    """
    host, _, port = listen.rpartition(":")
    address = host.strip("[]")
    if address != "localhost" and not ipaddress.ip_address(address).is_loopback:
        raise ValueError(f"exporter.listen = {listen!r}: only loopback is served; put a proxy in front for others")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RouterCollector(control))
    pages = type("BoundPages", (ExporterPages,), {"control": control, "registry": registry})
    server = ThreadingHTTPServer((address, int(port)), pages)
    server.daemon_threads = True
    return server


def main() -> int:
    """Entry point of the process."""
    require_assertions()
    exit_with_parent()
    if os.environ.get("PENSTOCK_JOURNAL") == "1":
        _ = os.dup2(JOURNAL_FD, 2)
    parser = argparse.ArgumentParser()
    _ = parser.add_argument("--settings", type=Path, required=True)
    settings = handover.read(parser.parse_args().settings)
    logs.configure("exporter", level=settings.log_level)
    record_start(settings.runtime_dir, "exporter")
    log = logs.get()
    try:
        server = serve(settings.exporter.listen, settings.control_path)
    except (OSError, ValueError) as error:
        log.error("exporter_listen_failed", listen=settings.exporter.listen, reason=str(error))  # noqa: TRY400 - the reason is enough
        server = None
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        _ = signal.signal(number, lambda _number, _frame: stopped.set())
    if server is not None:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log.info("exporter_ready", listen=settings.exporter.listen)
    # The clock runs even if the port is in use, so that this does not slow down restarts.
    while not stopped.wait(TICK_S):
        _ = sys.stdout.write("\n")
        sys.stdout.flush()
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
