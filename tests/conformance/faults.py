"""The page of other clients' faults, made from `faults.toml` and from the tests that name them. `make docs` writes it.

python -m tests.conformance.faults            writes docs/design/faults.md
"""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, cast

ROOT: Final = Path(__file__).resolve().parents[2]
TABLE: Final = ROOT / "tests/conformance/faults.toml"
PAGE: Final = ROOT / "docs/design/faults.md"

_HEAD: Final = """# Faults of other clients, and the tests that they are not ours

Made from `tests/conformance/faults.toml` and from the tests that name its faults, by `make docs`; do not edit.

Each of these was met in a client that many use: read in its reports, or made to happen. Those of transactions are left out, for
Penstock has none. The tests run the parts of the daemon, of its client library and of the direct producer themselves.

| fault | where | what went wrong there | here | shown by |
|---|---|---|---|---|
"""


class Fault(NamedTuple):
    """One of somebody else's."""

    id: str
    client: str
    fault: str
    here: str
    """What keeps it away."""
    issues: Sequence[str] = ()
    """Where it was reported."""


class Shown(NamedTuple):
    """A test that names faults."""

    path: str
    name: str
    faults: tuple[str, ...]


def read_faults(path: Path = TABLE) -> list[Fault]:
    """
    Raises:
        TypeError: a fault says what no fault has, or leaves out what each has.
    """
    return [Fault(**given) for given in cast("list[dict[str, str]]", tomllib.loads(path.read_text())["fault"])]


def read_tests(folder: Path = ROOT / "tests") -> list[Shown]:
    """Every test that names faults.

    Raises:
        ValueError: a mark stands where no test is, or names no fault.
    """
    return [shown for path in sorted(folder.rglob("*.py")) for shown in _marked(path, path.relative_to(folder.parent))]


def _marked(path: Path, place: Path) -> Iterator[Shown]:
    text = path.read_text()
    if "mark.fault" not in text:
        return
    tree = ast.parse(text)
    seen = 0
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (named := list(_named(node.decorator_list))):
            if not (node.name.startswith("test_") and path.name.startswith("test_")):
                raise ValueError(f"{place}::{node.name} names faults and is no test")
            seen += len(named)
            yield Shown(str(place), node.name, tuple(dict.fromkeys(named)))
    if seen != len(list(_named([tree]))):
        raise ValueError(f"{place}: a fault is named where no test is")


def _named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for call in (found for node in nodes for found in ast.walk(node)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "fault":
            continue
        if not isinstance(call.func.value, ast.Attribute) or call.func.value.attr != "mark":
            continue
        for argument in call.args:
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                raise ValueError(f"line {argument.lineno}: a fault is named by its id, as a text")  # noqa: TRY004  (the file is wrong)
            yield argument.value


def tests_of(shown: Iterable[Shown]) -> Mapping[str, list[Shown]]:
    """Tests by fault."""
    found: dict[str, list[Shown]] = defaultdict(list)
    for test in shown:
        for fault in test.faults:
            found[fault].append(test)
    return dict(found)


def page(faults: Sequence[Fault], shown: Sequence[Shown]) -> str:
    """The whole page, Markdown."""
    tests = tests_of(shown)
    return _HEAD + "".join(_line(fault, tests.get(fault.id, [])) for fault in faults)


def _line(fault: Fault, tests: Sequence[Shown]) -> str:
    links = [f"[{_short(issue)}]({issue})" for issue in fault.issues]
    where = f"{fault.client}: {', '.join(links)}" if links else fault.client
    named = "<br>".join(f"`{test.path}::{test.name}`" for test in tests) or "not yet"
    return f"| {fault.id} | {where} | {fault.fault} | {fault.here} | {named} |\n"


def _short(issue: str) -> str:
    repository, _, number = issue.rpartition("/")
    return f"{repository.split('/')[4]} {number}"


def main() -> None:
    """Write the page."""
    _ = PAGE.write_text(page(read_faults(), read_tests()))


if __name__ == "__main__":
    main()
