"""`penstock audit …`: the topic in which the daemon publishes which records it took and delivered."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .common import ConfigOption, fail, settings_from

if TYPE_CHECKING:
    from .topic_admin import TopicDescription

RETENTION_MS: Final = 90 * 86_400_000
WANTED: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(RETENTION_MS),
    # For a daemon whose clock is wrong: records from the future would be refused, and records far in the past deleted at once.
    "message.timestamp.type": "LogAppendTime",
}

app = typer.Typer(
    no_args_is_help=True, help="Manage the topic in which the daemon publishes which records it took and delivered."
)


@app.callback()
def audit() -> None:
    """Manage the topic in which the daemon publishes which records it took and delivered."""


@app.command("create-topic")
def create_topic(
    config: ConfigOption = None,
    partitions: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of partitions; each daemon writes to one.")
    ] = 3,
    replication_factor: Annotated[
        int, typer.Option(min=-1, max=100, help="Replicas of each partition; -1: the brokers' default.")
    ] = -1,
) -> None:
    """Create the audit topic of the settings; if it exists, report problems with its configuration."""
    from .topic_admin import AdminError, TopicAdmin

    settings = settings_from(config)
    topic = settings.audit.topic
    try:
        with closing(TopicAdmin(settings.kafka)) as admin:
            found = admin.describe(topic, [*WANTED, "min.insync.replicas"])
            if found is None:
                admin.create(topic, partitions, replication_factor or -1, WANTED)
                sys.stdout.write(f"{topic}: made, {partitions} partitions, compacted, kept for 90 days\n")
                return
    except AdminError as error:
        fail(str(error))
    wrong = problems(found)
    for problem in wrong:
        sys.stderr.write(f"penstock: {topic}: {problem}\n")
    if wrong:
        raise typer.Exit(1)
    sys.stdout.write(f"{topic}: is there, {found.partitions} partitions, as it should be\n")


def problems(found: "TopicDescription") -> list[str]:
    """Return the differences between this topic and a correct audit topic, one sentence each."""
    wrong: list[str] = []
    policy = {word.strip() for word in (found.settings.get("cleanup.policy") or "").split(",")}
    if "compact" not in policy:
        wrong.append(
            "cleanup.policy lacks compact: it grows by every statement, though only the newest of a key counts"
        )
    if "delete" not in policy:
        wrong.append("cleanup.policy lacks delete: what was told is kept for ever")
    if found.settings.get("message.timestamp.type") == "CreateTime":
        wrong.append("message.timestamp.type is not LogAppendTime: a daemon whose clock is wrong tells in vain")
    retention = found.settings.get("retention.ms")
    if "delete" in policy and retention is not None and 0 <= int(retention) < RETENTION_MS:
        wrong.append(f"retention.ms = {retention} is less than 90 days: hours audited later than that are not complete")
    return wrong


def missing(settings_topic: str, found: "TopicDescription | None") -> list[str]:
    """Return warnings for `penstock check`."""
    if found is None:
        return [f"the audit topic {settings_topic} does not exist: penstock audit create-topic makes it"]
    return [f"{settings_topic}: {problem}" for problem in problems(found)]
