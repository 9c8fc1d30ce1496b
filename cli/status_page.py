"""`penstock status` for people."""

from typing import Any

from rich.console import Console
from rich.table import Table


def show(stats: dict[str, Any]) -> None:
    """Print the page."""
    console = Console()
    console.print(_summary(stats))
    if stats["nodes"]:
        console.print(_nodes(stats))
    if stats["alarms"]:
        console.print(_alarms(stats))


def _summary(stats: dict[str, Any]) -> Table:
    table = Table(title=f"penstock {stats['version']}, up {stats['uptime_s']:.0f} s", show_header=False)
    records = stats["records"]
    table.add_row("state", stats["state"])
    table.add_row(
        "records",
        ", ".join(f"{records[name]:,} {name}" for name in ("received", "delivered", "pending", "parked", "refused")),
    )
    spool = stats["spool"]
    table.add_row("spool", f"{spool['bytes']:,} of {spool['bytes_max']:,} bytes, {spool['segments']} segments")
    table.add_row("sessions", str(stats["sessions"]["open"]))
    processes = [f"{item['name']} (pid {item['pid']}, {item['cpu_us'] / 1e6:.1f} s CPU)" for item in stats["processes"]]
    table.add_row("processes", ", ".join(processes))
    table.add_row("alarms", str(len(stats["alarms"])))
    return table


def _nodes(stats: dict[str, Any]) -> Table:
    table = Table(title="brokers")
    for column in ("node", "address", "shard", "state", "in flight", "queued batches", "round trip", "last error"):
        table.add_column(column)
    for node in stats["nodes"]:
        trip = f"{node['round_trip_us'] / 1000:.1f} ms" if node["round_trip_us"] else "-"
        cells = [
            node["node"],
            node["address"],
            node["shard"],
            node["state"],
            node["in_flight"],
            node["queued_batches"],
            trip,
        ]
        table.add_row(*[str(cell) for cell in cells], node["last_error"])
    return table


def _alarms(stats: dict[str, Any]) -> Table:
    table = Table(title="alarms: these partitions wait for you")
    for column in ("topic", "partition", "reason", "since", "what"):
        table.add_column(column)
    for alarm in stats["alarms"]:
        table.add_row(
            alarm["topic"], str(alarm["partition"]), alarm["reason"], f"{alarm['since_s']:.0f} s", alarm["text"]
        )
    return table
