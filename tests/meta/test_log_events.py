"""The page of log events names every event the code logs, with its level and fields, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock.daemon.leases.states import BlockReason

from tests.meta.test_shape import ROOT, sources

LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "critical": "critical",
    "exception": "error",
}
SECTIONS: Final = {
    "daemon": "Router",
    "shards": "Shards",
    "producer": "Towards the brokers",
    "broker": "Embedded broker",
    "client": "Client library",
    "pipeline": "Pipeline",
}
# Names that come from a value: the alarms and `possible_duplicates`, and a shard's messages at DEBUG.
BY_VALUE: Final = {("daemon/router/router.py", "notice.event"), ("shards/worker.py", "type(message).__name__.lower()")}
NOTICES: Final = {why.value for why in BlockReason} | {"possible_duplicates", "log_end_search_started"}


class Logged(NamedTuple):
    section: str
    event: str
    level: str
    fields: frozenset[str]


def is_logger(called: ast.expr) -> bool:
    """`log`, `self._log`, `logs.get()` or `get()`."""
    match called:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in ("log", "_log")
        case ast.Call(func=ast.Attribute(attr="get", value=ast.Name(id="logs")) | ast.Name(id="get")):
            return True
        case _:
            return False


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LEVELS
                and is_logger(node.func.value)
            ):
                yield path.relative_to(ROOT), node, LEVELS[node.func.attr]


def section_of(path: Path) -> str:
    return "Exporter" if path.name == "exporter.py" else SECTIONS[path.parts[0]]


def logged() -> Iterator[Logged]:
    for path, call, level in calls():
        first = call.args[0]
        if isinstance(first, ast.Constant):
            fields = frozenset(word.arg for word in call.keywords if word.arg and word.arg != "exc_info")
            yield Logged(section_of(path), str(first.value).split()[0], level, fields)
        else:
            assert (str(path), ast.unparse(first)) in BY_VALUE, (
                f"{path}:{call.lineno} logs an event without a fixed name"
            )


def told() -> Iterator[tuple[str, str, set[str], set[str]]]:
    """Section, event, levels, fields, as on the page."""
    section = ""
    for line in (ROOT / "docs/reference/log-events.md").read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| `"):
            event, level, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            fields = rest[0] if len(rest) > 1 else ""
            yield section, event.strip("`"), set(level.split(", ")), set(re.findall(r"\w+", fields))


def test_every_event_that_is_logged_is_on_the_page_and_no_other() -> None:
    code = {(item.section, item.event) for item in logged()} | {("Router", name) for name in NOTICES}
    page = [(section, event) for section, event, _, _ in told()]
    assert sorted(code - set(page)) == []
    assert sorted(set(page) - code) == []
    assert len(set(page)) == len(page)


def test_levels_and_fields_are_those_of_the_code() -> None:
    levels: dict[tuple[str, str], set[str]] = {}
    fields: dict[tuple[str, str], set[str]] = {}
    for item in logged():
        levels.setdefault((item.section, item.event), set()).add(item.level)
        fields.setdefault((item.section, item.event), set()).update(item.fields)
    for section, event, told_levels, told_fields in told():
        if (section, event) in levels:
            assert told_levels == levels[section, event], event
            assert told_fields == fields[section, event], event


def test_an_event_is_a_past_tense_word_without_capitals() -> None:
    assert {item.event for item in logged() if not re.fullmatch(r"[a-z]+(_[a-z]+)*", item.event)} == set()
