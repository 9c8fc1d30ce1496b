"""`penstock dead-letters …`: records that Kafka refused permanently."""

import base64
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from .common import ConfigOption, DirectoryOption, JsonOption, RuntimeOption, data_settings, fail, write_json

app = typer.Typer(no_args_is_help=True, help="Show records that Kafka refused permanently.")


@app.command("list")
def list_verb(
    config: ConfigOption = None,
    runtime_dir: RuntimeOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters: topic, partition, Kafka's error, number of records."""
    from ..daemon.deadletters.files import list_dead_letters

    folder = directory or data_settings(config, runtime_dir).dead_letter_dir
    try:
        letters = list_dead_letters(folder) if folder.exists() else []
    except OSError as error:
        fail(f"{folder}: {error.strerror}")
    if as_json:
        write_json([asdict(letter) for letter in letters])
        return
    for letter in letters:
        place = f"{letter.topic}-{letter.partition}"
        sys.stdout.write(f"{letter.name}  {place}  {letter.records} records  {letter.error}: {letter.message}\n")
    if not letters:
        sys.stdout.write("no dead letters\n")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of a dead letter, as `list` shows it.")],
    config: ConfigOption = None,
    runtime_dir: RuntimeOption = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the records of one dead letter. With --json, keys and values are base64."""
    from ..daemon.deadletters.files import DeadLetterError, read_dead_letter

    try:
        letter, records = read_dead_letter(directory or data_settings(config, runtime_dir).dead_letter_dir, name)
    except (DeadLetterError, OSError) as error:
        fail(str(error))
    if as_json:
        write_json({"letter": asdict(letter), "records": [_encoded(asdict(record)) for record in records]})
        return
    sys.stdout.write(f"{letter.topic}-{letter.partition}  {letter.error}: {letter.message}\n")
    for record in records:
        what = record.unreadable or f"key {record.key!r} value {record.value!r}"
        sys.stdout.write(f"{record.ordinal}  client {record.client_id} seq {record.seq} index {record.index}  {what}\n")


def _encoded(value: object) -> object:
    """Convert bytes to base64, in nested values too."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    return value
