"""Docstrings, comments and pages use current English and the field's terms: phrases that readers stumbled over do not come back."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.meta.test_shape import ROOT, sources

# Each with what to write instead.
PHRASES: Final = {
    r"told|tells": "report, return, log, send: the verb that says how",
    r"whoever|whomever|nobody|stranger": "name the thing: caller, client, process, peer",
    r"for company|have nothing wait": "wait for its batch to fill; send everything buffered",
    r"for want of|in vain|of its own accord|lest|anew|for good": "because there is no, without effect, by itself, again, permanently",
    r"letters that|no text that|is no text": "cannot be encoded as UTF-8, is not valid UTF-8",
    r"made again": "recreated",
    r"ghosts?": "in-doubt records",
    r"at its end|goes on": "complete, continues",
    r"what stands|who waits|whose turn": "name the thing",
}
BANNED: Final = re.compile(r"(?<![\w-])(?:" + "|".join(PHRASES) + r")(?![\w-])", re.IGNORECASE)
# A name in backticks is code.
CODE: Final = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
# Made from tables of the tests, whose rows quote the names of tests.
GENERATED: Final = ("docs/design/conformance.md", "docs/design/faults.md")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring and comment of a module."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def banned(text: str) -> list[str]:
    return BANNED.findall(CODE.sub("", text))


def test_docstrings_and_comments_have_no_phrase_that_readers_stumble_over() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}": phrases
        for path in sources()
        for line, text in prose(path)
        if (phrases := banned(text))
    }
    assert found == {}, PHRASES


@pytest.mark.parametrize("folder", ["docs/howto", "docs/tutorial", "docs/reference", "docs/design", "docs/decisions"])
def test_pages_have_no_phrase_that_readers_stumble_over(folder: str) -> None:
    pages = sorted((ROOT / folder).glob("*.md"))
    assert pages
    found = {
        str(page.relative_to(ROOT)): phrases
        for page in pages
        if str(page.relative_to(ROOT)) not in GENERATED and (phrases := banned(page.read_text()))
    }
    assert found == {}, PHRASES


@pytest.mark.parametrize(
    "text",
    [
        "Records wait for company.",
        "Nobody is told.",
        "user or password has letters that UTF-8 has not",
        "the broker's SCRAM message is no text",
        "The topic was made again.",
    ],
)
def test_such_a_phrase_is_found(text: str) -> None:
    assert banned(text)


def test_names_in_backticks_are_code() -> None:
    assert banned("Call `tell`, and pass `told` on.") == []
