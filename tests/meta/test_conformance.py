"""Each conformance row has its test, and the page says which."""

import ast
from pathlib import Path

import pytest

from tests.conformance import page
from tests.conformance.page import Row, Shown, Table

TABLE = page.read_table()
SHOWN = page.read_tests()
TESTS = page.tests_of(SHOWN)
AGAIN = "run `make docs`"


def test_rows_are_numbered_in_their_groups() -> None:
    expected = [
        f"{letter}{number + 1}"
        for letter in TABLE.groups
        for number in range(sum(row.id[0] == letter for row in TABLE.rows))
    ]
    assert [row.id for row in TABLE.rows] == expected


def test_a_row_says_what_the_daemon_does_otherwise_exactly_if_it_does() -> None:
    assert [row.id for row in TABLE.rows if bool(row.daemon) != ("differs" in row.mark) and not row.skip] == []


def test_a_row_is_shown_or_later_or_has_no_counterpart() -> None:
    assert [row.id for row in TABLE.rows if bool(row.later) + bool(row.skip) + row.not_yet > 1] == []


def test_every_row_that_can_be_shown_has_its_test() -> None:
    missing = [row.id for row in TABLE.rows if row.needs_test and not row.not_yet and row.id not in TESTS]
    assert not missing, f"{len(missing)} rows have no test: {', '.join(missing)}"


def test_no_row_waits_for_a_test_that_it_has() -> None:
    waiting = [row.id for row in TABLE.rows if row.not_yet and row.id in TESTS]
    assert not waiting, f"take `not_yet` from {', '.join(waiting)}: {AGAIN}"


def test_a_row_without_a_counterpart_has_no_test() -> None:
    assert [row.id for row in TABLE.rows if row.skip and row.id in TESTS] == []


def test_every_row_that_a_test_names_is_there() -> None:
    known = {row.id for row in TABLE.rows}
    assert {f"{test.path}::{test.name}": set(test.rows) - known for test in SHOWN if set(test.rows) - known} == {}


def test_the_page_is_what_rows_and_tests_say() -> None:
    assert page.PAGE.read_text() == page.page(TABLE, SHOWN), AGAIN


def test_every_test_on_the_page_exists() -> None:
    written = page.PAGE.read_text()
    named = {found for line in written.splitlines() for found in line.split("`") if ".py::" in found}
    assert named
    for place in named:
        path, _, name = place.partition("::")
        tree = ast.parse((page.ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, place


def written(folder: Path, text: str, name: str = "test_it.py") -> list[Shown]:
    """What is read of a folder `tests` with one file in it."""
    (folder / "tests").mkdir()
    (folder / "tests" / name).write_text(text)
    return page.read_tests(folder / "tests")


def test_marks_are_found_on_functions_on_parameters_and_on_the_module(tmp_path: Path) -> None:
    text = (
        "pytestmark = pytest.mark.row('A9')\n"
        "@pytest.mark.row('A1', 'A2')\n@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.row('A3'))])\n"
        "def test_one(): ...\n"
        "def test_two(): ...\n"
        "def no_test(): ...\n"
    )
    assert written(tmp_path, text) == [
        Shown("tests/test_it.py", "test_one", ("A9", "A1", "A2", "A3")),
        Shown("tests/test_it.py", "test_two", ("A9",)),
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("@pytest.mark.row('A1')\ndef is_one(): ...\n", "test_it.py"),
        ("@pytest.mark.row('A1')\ndef test_one(): ...\n", "it.py"),
        ("class TestIt:\n    @pytest.mark.row('A1')\n    def test_one(self): ...\n", "test_it.py"),
        ("@pytest.mark.row(ROW)\ndef test_one(): ...\n", "test_it.py"),
        ("@pytest.mark.row(1)\ndef test_one(): ...\n", "test_it.py"),
    ],
)
def test_a_mark_that_would_show_nothing_is_an_error(tmp_path: Path, text: str, name: str) -> None:
    with pytest.raises(ValueError, match="row"):
        written(tmp_path, text, name)


def test_a_row_with_a_word_nobody_knows_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text('[groups]\nA = "x"\n[[row]]\nid = "A1"\nname = "y"\nskipped = "z"\n')
    with pytest.raises(ValueError, match="A1: skipped"):
        page.read_table(path)


def test_settling_takes_the_word_from_rows_that_have_a_test_and_from_no_other() -> None:
    text = '# x\n\n[[row]]\nid = "A1"\nnot_yet = true\n\n[[row]]\nid = "A2"\nnot_yet = true\n'
    assert page.settled(text, [Shown("tests/test_it.py", "test_one", ("A1",))]) == (
        '# x\n\n[[row]]\nid = "A1"\n\n[[row]]\nid = "A2"\nnot_yet = true\n'
    )


def test_the_page_tells_what_is_shown_what_is_later_and_what_is_not_to_be_had() -> None:
    rows = [
        Row("A1", "test_a", frozenset({"telling"}), "BUF-1"),
        Row("A2", "b|c", frozenset({"differs"}), daemon="waits."),
        Row("A3", "d", later="transactions"),
        Row("A4", "e", skip="gone"),
        Row("A5", "f", not_yet=True),
    ]
    lines = page.page(Table({"A": "Letters"}, rows), [Shown("tests/x.py", "test_x", ("A1",))]).splitlines()
    assert "| A. Letters | 5 | 1 | 1 | 1 |" in lines
    assert "| A1 **\\*** | test\\_a | BUF-1 | `tests/x.py::test_x` |" in lines
    assert "| A2 | b\\|c<br>*Daemon:* waits. |  | not yet |" in lines
    assert "| A3 | d |  | later, with transactions |" in lines
    assert "| A4 | e |  | no counterpart: gone |" in lines
    assert "| A5 | f |  | not yet |" in lines
