"""Rules about the tree that no linter knows."""

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ("api", "broker", "cli", "client", "config", "daemon", "pipeline", "producer", "runtime", "shards", "wire")
FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60
# The kernel is one pass over bytes in C's manner; splitting its loops would cost what it exists to save.
LONG_FUNCTIONS_ALLOWED = "producer/kernel/"


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, check=True, text=True, capture_output=True
    ).stdout.split()
    return [ROOT / name for name in listed if name.split("/")[0] in PACKAGE and (ROOT / name).exists()]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_there_are_sources_to_look_at() -> None:
    assert len(sources()) > 30


def test_a_file_can_be_read_in_one_sitting() -> None:
    long = {
        str(path.relative_to(ROOT)): n
        for path in sources()
        if (n := len(path.read_text().splitlines())) > FILE_LINES_MAX
    }
    assert long == {}


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        for path in sources()
        if not str(path.relative_to(ROOT)).startswith(LONG_FUNCTIONS_ALLOWED)
        for function in functions(ast.parse(path.read_text()))
        if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_nothing_is_called_utils_or_helpers() -> None:
    assert [path for path in sources() if path.stem in ("utils", "util", "helpers", "misc", "common_utils")] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.name != "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


@pytest.mark.parametrize("name", ["time.sleep(", "unittest.mock", "monkeypatch"])
def test_tests_wait_on_events_and_patch_nothing(name: str) -> None:
    """Only code that waits for another machine or process to become ready polls, and it lives in tests/harness and tests/systemd."""
    allowed = ("tests/harness/", "tests/systemd/box.py", "tests/meta/")
    listed = subprocess.run(
        ["git", "ls-files", "tests/*.py"], cwd=ROOT, check=True, text=True, capture_output=True
    ).stdout.split()
    guilty = [
        item
        for item in listed
        if not item.startswith(allowed) and (ROOT / item).exists() and name in (ROOT / item).read_text()
    ]
    assert guilty == []


def test_every_folder_of_the_package_is_in_the_wheel() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    assert {"penstock." + ".".join(path.relative_to(ROOT).parts[:-1]) for path in sources()} == listed
