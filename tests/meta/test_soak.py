"""`make soak` runs with its full count whatever has one."""

import ast
import re
import subprocess
from pathlib import PurePosixPath
from typing import NamedTuple

from tests.harness.counts import MODEL_EXAMPLES
from tests.meta.test_shape import ROOT

SOAK = ROOT / "tools" / "soak.sh"
COUNT = re.compile(r'(?:count_from\(|(?:int|float)\(os\.environ\.get\()"(PENSTOCK_[A-Z_]+)", ')
MACHINE = re.compile(r"^class \w+\(RuleBasedStateMachine\):", re.MULTILINE)
# These repeat a run or stretch its waits, and say nothing of its length.
NO_COUNTS = {"PENSTOCK_SEED", "PENSTOCK_SIM_FIRST", "PENSTOCK_TEST_PATIENCE"}


class Run(NamedTuple):
    """One line of the script."""

    counts: frozenset[str]
    places: tuple[str, ...]
    """Files and folders of tests."""


def soak_runs() -> list[Run]:
    lines = SOAK.read_text().replace("\\\n", " ").splitlines()
    return [
        Run(frozenset(re.findall(r"\b(PENSTOCK_[A-Z_]+)=", line)), tuple(re.findall(r"\btests/[\w./]+", line)))
        for line in lines
        if not line.startswith("#")
    ]


def files_of_tests() -> dict[str, str]:
    """Each file of tests, and its text."""
    listed = subprocess.run(
        ["git", "ls-files", "tests/*.py"], cwd=ROOT, check=True, text=True, capture_output=True
    ).stdout.split()
    return {name: (ROOT / name).read_text() for name in listed if (ROOT / name).exists()}


def counts() -> set[tuple[str, str]]:
    """Each file of tests with a count of its own, and the count's name."""
    texts = files_of_tests()
    found = {(name, count) for name, text in texts.items() for count in COUNT.findall(text) if count not in NO_COUNTS}
    return found | {(name, MODEL_EXAMPLES) for name, tree in models(texts).items() if calls(tree, "settings")}


def models(texts: dict[str, str]) -> dict[str, ast.Module]:
    """The files of models: all of tests/model, and every state machine elsewhere."""
    return {
        name: ast.parse(text)
        for name, text in texts.items()
        if name.startswith("tests/model/test_") or MACHINE.search(text)
    }


def calls(tree: ast.Module, function: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    ]


def fixed_examples(tree: ast.Module) -> list[int]:
    """The lines of a model whose count of examples `make soak` cannot raise."""
    return [
        call.lineno
        for call in calls(tree, "settings")
        if not any(
            word.arg == "max_examples" and ast.unparse(word.value).startswith("model_examples(")
            for word in call.keywords
        )
    ]


def test_every_model_takes_its_examples_from_the_one_setting() -> None:
    found = models(files_of_tests())
    assert len(found) > 15
    assert {name: lines for name, tree in found.items() if (lines := fixed_examples(tree))} == {}
    # A machine or a property without settings of its own would run with Hypothesis's count.
    for name, tree in found.items():
        machines = len(MACHINE.findall((ROOT / name).read_text()))
        properties = len(calls(tree, "given"))
        assert len(calls(tree, "settings")) >= max(1, machines, properties), name


def test_a_fixed_count_of_examples_is_found() -> None:
    source = "A.settings = settings(max_examples=40)\nB.settings = settings(max_examples=model_examples(40))\n"
    assert fixed_examples(ast.parse(source)) == [1]
    assert fixed_examples(ast.parse("C.settings = settings(deadline=None)")) == [1]


def test_every_count_is_the_full_one_in_the_soak_of_its_own_test() -> None:
    runs, wanted = soak_runs(), counts()
    assert len(wanted) > 20
    forgotten = {
        (name, count)
        for name, count in wanted
        if not any(
            count in run.counts and any(PurePosixPath(name).is_relative_to(at) for at in run.places) for run in runs
        )
    }
    assert forgotten == set()


def test_the_soak_sets_only_counts_that_its_tests_have_and_runs_only_tests_that_there_are() -> None:
    known = {count for _, count in counts()} | {"PENSTOCK_REQUIRE_ALL", "PENSTOCK_ALL_VERSIONS", "PENSTOCK_WRITER"}
    assert set().union(*(run.counts for run in soak_runs())) - known == set()
    assert [place for run in soak_runs() for place in run.places if not (ROOT / place).exists()] == []
