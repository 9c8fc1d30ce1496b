"""The text form of `penstock status`."""

from typing import Any

from rich.console import Console
from rich.table import Table


def show(stats: dict[str, Any]) -> None:
    console = Console()
    console.print(_summary(stats))
    if stats["nodes"]:
        console.print(_nodes(stats))
    if stats["alarms"]:
        console.print(_alarms(stats))


def _summary(stats: dict[str, Any]) -> Table:
    router = stats["router"]
    table = Table(title=f"penstock, router up {router['uptime_s']:.0f} s", show_header=False)
    records = stats["records"]
    words = ("received", "delivered", "pending", "dead_lettered", "refused")
    table.add_row("phase", router["phase"])
    table.add_row("records", ", ".join(f"{records[word]:,} {word}" for word in words))
    spool = stats["spool"]
    table.add_row(
        "spool",
        f"{spool['bytes']:,} of {spool['bytes_max']:,} bytes, {spool['segments']} segments, oldest pending {spool['oldest_s']:.1f} s",
    )
    table.add_row("sessions", f"{stats['sessions']['open']} open, {stats['sessions']['held']} held")
    processes = [f"{item['name']} (pid {item['pid']}, {item['cpu_us'] / 1e6:.1f} s CPU)" for item in stats["processes"]]
    table.add_row("processes", ", ".join(processes))
    problems = ", ".join(stats["metadata"]["problems"].values())
    table.add_row(
        "metadata",
        ("connected" if stats["metadata"]["connected"] else "no broker answers")
        + (f"; {problems}" if problems else ""),
    )
    audit = stats["audit"]
    table.add_row("audit", audit["state"] + (f"; {audit['last_error']}" if audit["last_error"] else ""))
    security = stats["security"]
    table.add_row(
        "security", ", ".join([security["protocol"], *filter(None, [security["mechanism"]]), *security["insecure"]])
    )
    table.add_row("alarms", str(len(stats["alarms"])))
    return table


def _nodes(stats: dict[str, Any]) -> Table:
    table = Table(title="brokers")
    for column in ("node", "address", "shard", "state", "in flight", "queued batches", "round trip", "last error"):
        table.add_column(column)
    for node in stats["nodes"]:
        trip_us = node.get("round_trip_us")
        cells = [node["node"], f"{node['host']}:{node['port']}", node.get("shard", "-"), node.get("state", "-")]
        cells += [
            node.get("in_flight", "-"),
            node.get("queued_batches", "-"),
            f"{trip_us / 1000:.1f} ms" if trip_us else "-",
        ]
        table.add_row(*[str(cell) for cell in cells], node.get("last_error", ""))
    return table


def _alarms(stats: dict[str, Any]) -> Table:
    table = Table(title="alarms: these partitions wait")
    for column in ("topic", "partition", "reason", "since", "what"):
        table.add_column(column)
    for alarm in stats["alarms"]:
        table.add_row(
            alarm["topic"], str(alarm["partition"]), alarm["reason"], f"{alarm['since_s']:.0f} s", alarm["text"]
        )
    return table
