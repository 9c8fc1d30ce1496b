"""`penstock`: one command, a verb each. Exit codes are those of `runtime.process.ExitCode`."""

import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from . import audit_verbs, config_verbs, daemon_verbs, letter_verbs, load_verbs, spool_verbs
from .common import ConfigOption, fail, settings_from

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Local ingestion daemon for Apache Kafka: sends records from a Unix socket to Kafka, once and in order.",
)
app.add_typer(config_verbs.app, name="config")
app.add_typer(spool_verbs.app, name="spool")
app.add_typer(letter_verbs.app, name="dead-letters")
app.add_typer(audit_verbs.app, name="audit")
app.command()(daemon_verbs.status)
app.command()(daemon_verbs.reload)
app.command()(daemon_verbs.resend)
app.command()(daemon_verbs.check)
app.command()(load_verbs.send)
app.command()(load_verbs.loadgen)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(daemon_verbs.broker)


@app.command()
def run(
    config: ConfigOption = None,
    embedded_broker: Annotated[
        bool, typer.Option("--embedded-broker", help="Also run a small embedded broker. Not for production.")
    ] = False,
    broker_nodes: Annotated[int, typer.Option(min=1, max=9, help="Number of embedded brokers.")] = 1,
    broker_port: Annotated[int, typer.Option(min=1, max=65_000, help="Port of the first embedded broker.")] = 19092,
    topic: Annotated[
        list[str] | None, typer.Option(help="Topic to create on the embedded brokers: NAME:PARTITIONS.")
    ] = None,
    directory: Annotated[
        Path, typer.Option(help="Directory for all files if there is no settings file (with --embedded-broker).")
    ] = Path("penstock-trial"),
) -> None:
    """Run the daemon in the foreground: supervisord with router, shards and exporter."""
    from ..daemon.processes import supervisor

    brokers = None
    if embedded_broker:
        addresses = tuple(f"127.0.0.1:{broker_port + number}" for number in range(broker_nodes))
        settings = settings_from(config, trial=(directory, ",".join(addresses)))
        topics = topic or ["events:12"]
        audit = settings.audit
        if audit.enabled and all(name.partition(":")[0] != audit.topic for name in topics):
            topics = [*topics, f"{audit.topic}:3"]
        brokers = supervisor.EmbeddedBrokers(addresses, tuple(topics), settings.data_dir / "embedded-broker")
        sys.stderr.write(
            f"EMBEDDED BROKER at {settings.kafka.bootstrap_servers}: for trying things out, NOT FOR PRODUCTION: no replication.\n"
            f"Socket: {settings.socket_path}\n"
        )
    else:
        settings = settings_from(config)
    try:
        supervisor.launch(settings, brokers=brokers)
    except supervisor.LaunchError as error:
        fail(str(error))


@app.command()
def version(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Show the version of this installation."""
    from importlib.metadata import version as installed

    number = installed("penstock")
    sys.stdout.write(json.dumps({"version": number}) + "\n" if as_json else f"penstock {number}\n")


def main() -> NoReturn:
    try:
        app()
    except BrokenPipeError:
        sys.exit(0)
    sys.exit(0)


if __name__ == "__main__":
    main()
