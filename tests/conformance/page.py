"""The page of the conformance rows, made from `rows.toml` and from the tests that name rows. `make docs` writes it.

python -m tests.conformance.page            writes docs/design/conformance.md, and takes `not_yet` from rows that have a test
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, cast

ROOT: Final = Path(__file__).resolve().parents[2]
ROWS: Final = ROOT / "tests/conformance/rows.toml"
PAGE: Final = ROOT / "docs/design/conformance.md"
MARKS: Final = {"telling", "own", "differs"}
KEYS: Final = {"id", "name", "mark", "rules", "must", "daemon", "later", "skip", "not_yet"}

_HEAD: Final = """# Conformance: what the unit tests of Kafka's producer ask of ours

Made from `tests/conformance/rows.toml` and from the tests that name its rows, by `make docs`; do not edit.

Each row is a behaviour that a unit test of Kafka's own Java producer shows, under the name it has there, or one of our own. The parts
in `producer/` are the same in the shards of the daemon and in the direct producer; the tests join them in one process on a virtual
clock. Rules are those of [rules.md](rules.md). **\\*** marks the rows that tell most, **own** those that are ours. *Daemon:* says what
becomes of it where router, spool and shards stand between application and broker, or where stamps that follow from ordinals leave no
room for Kafka's way.

"""


class Row(NamedTuple):
    """One behaviour."""

    id: str
    name: str
    mark: frozenset[str] = frozenset()
    rules: str = ""
    must: str = ""
    """What must hold, where the name alone says little."""
    daemon: str = ""
    """What is different there."""
    later: str = ""
    """With what it is built."""
    skip: str = ""
    """Why nothing of ours could show it."""
    not_yet: bool = False
    """Its test is still being written."""

    @property
    def needs_test(self) -> bool:
        return not (self.later or self.skip)


class Shown(NamedTuple):
    """A test that names rows."""

    path: str
    name: str
    rows: tuple[str, ...]


class Table(NamedTuple):
    """`rows.toml`: titles of the groups by their letters, and the rows in order."""

    groups: Mapping[str, str]
    rows: Sequence[Row]


def read_table(path: Path = ROWS) -> Table:
    """
    Raises:
        ValueError: a row says what no row has.
    """
    whole = tomllib.loads(path.read_text())
    rows: list[Row] = []
    for given in cast("list[dict[str, object]]", whole["row"]):
        if unknown := (set(given) - KEYS) | (set(cast("list[str]", given.get("mark", []))) - MARKS):
            raise ValueError(f"{given.get('id')}: {', '.join(sorted(unknown))}")
        mark = frozenset(cast("list[str]", given.pop("mark", [])))
        rows.append(Row(**cast("dict[str, str]", given), mark=mark))  # type: ignore[arg-type]
    return Table(cast("dict[str, str]", whole["groups"]), rows)


def read_tests(folder: Path = ROOT / "tests") -> list[Shown]:
    """Every test that names rows.

    Raises:
        ValueError: a mark stands where no test is, or names no row.
    """
    return [shown for path in sorted(folder.rglob("*.py")) for shown in _marked(path, path.relative_to(folder.parent))]


def _marked(path: Path, place: Path) -> Iterator[Shown]:
    text = path.read_text()
    if "mark.row" not in text:
        return
    tree = ast.parse(text)
    everywhere = list(_rows(node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)))
    seen = len(everywhere)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        own = list(_rows(node.decorator_list))
        seen += len(own)
        is_test = node.name.startswith("test_") and path.name.startswith("test_")
        if own and not is_test:
            raise ValueError(f"{place}::{node.name} names rows and is no test")
        if is_test and (named := [*everywhere, *own]):
            yield Shown(str(place), node.name, tuple(dict.fromkeys(named)))
    if seen != len(list(_rows([tree]))):
        raise ValueError(f"{place}: a row is named where no test is: mark test functions or the module")


def _rows(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for call in (found for node in nodes for found in ast.walk(node)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "row":
            continue
        if not isinstance(call.func.value, ast.Attribute) or call.func.value.attr != "mark":
            continue
        for argument in call.args:
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                raise ValueError(f"line {argument.lineno}: a row is named by its id, as a text")  # noqa: TRY004  (the file is wrong)
            yield argument.value


def tests_of(shown: Iterable[Shown]) -> dict[str, list[Shown]]:
    """Tests by row."""
    found: dict[str, list[Shown]] = defaultdict(list)
    for test in shown:
        for row in test.rows:
            found[row].append(test)
    return dict(found)


def page(table: Table, shown: Sequence[Shown]) -> str:
    """The whole page, Markdown."""
    tests = tests_of(shown)
    return "".join([_HEAD, *_summary(table, tests), *(_group(table, letter, tests) for letter in table.groups)])


def _summary(table: Table, tests: Mapping[str, Sequence[Shown]]) -> Iterator[str]:
    yield "| group | rows | shown | later | no counterpart |\n|---|---|---|---|---|\n"
    totals = [0, 0, 0, 0]
    for letter, title in table.groups.items():
        rows = [row for row in table.rows if row.id[0] == letter]
        counts = [
            len(rows),
            sum(row.id in tests for row in rows),
            sum(bool(row.later) and row.id not in tests for row in rows),
            sum(bool(row.skip) for row in rows),
        ]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        yield f"| {letter}. {title} | {' | '.join(map(str, counts))} |\n"
    yield f"| all | {' | '.join(map(str, totals))} |\n"


def _group(table: Table, letter: str, tests: Mapping[str, Sequence[Shown]]) -> str:
    lines = [f"\n## {letter}. {table.groups[letter]}\n", "| row | what | rules | shown by |", "|---|---|---|---|"]
    for row in table.rows:
        if row.id[0] == letter:
            label = f"{row.id} **\\***" if "telling" in row.mark else row.id
            cells = [label, _what(row), row.rules, _shown(row, tests.get(row.id, ()))]
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _what(row: Row) -> str:
    name = f"{row.name} (**own**)" if "own" in row.mark else row.name
    parts = [re.sub(r"([*_<>])", r"\\\1", name) if "own" not in row.mark else name]
    if row.must:
        parts.append(row.must)
    if row.daemon:
        parts.append(f"*Daemon:* {row.daemon}")
    return "<br>".join(parts)


def _shown(row: Row, tests: Sequence[Shown]) -> str:
    found = [f"`{test.path}::{test.name}`" for test in tests]
    if row.skip:
        found.append(f"no counterpart: {row.skip}")
    elif row.later and not tests:
        found.append(f"later, with {row.later}")
    return "<br>".join(found) or "not yet"


def settled(text: str, shown: Iterable[Shown]) -> str:
    """`rows.toml` without `not_yet` in rows that have a test."""
    tests = tests_of(shown)
    blocks = re.split(r"(?m)^(?=\[\[row\]\]$)", text)
    found = (re.search(r'(?m)^id = "(\w+)"$', block) for block in blocks)
    return "".join(
        re.sub(r"(?m)^not_yet = true\n", "", block) if match and match[1] in tests else block
        for block, match in zip(blocks, found, strict=True)
    )


def main() -> None:
    """Write the page; settle the rows."""
    shown = read_tests()
    _ = ROWS.write_text(settled(ROWS.read_text(), shown))
    _ = PAGE.write_text(page(read_table(), shown))


if __name__ == "__main__":
    main()
