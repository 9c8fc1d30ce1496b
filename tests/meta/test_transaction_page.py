"""The page of transactions shows the tables that the code follows."""

import re

from penstock.producer.transactions.states import (
    DEFAULT_REACTIONS,
    REACTIONS,
    TRANSITIONS,
    TransactionApi,
    TransactionManagerState,
)

from tests.meta import transaction_page
from tests.meta.transaction_page import PAGE

AGAIN = "run `make docs`"


def test_the_page_has_the_tables_of_the_code() -> None:
    text = PAGE.read_text()
    assert text == transaction_page.filled(text), AGAIN
    assert {found[2] for found in transaction_page.MARKED.finditer(text)} == {"diagram", "reactions", "requests"}


def test_the_diagram_shows_every_arrow_and_no_other() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", PAGE.read_text(), re.MULTILINE))
    assert drawn == {(state.value, after.value) for state, row in TRANSITIONS.items() for after in row}


def test_every_state_has_its_row_and_every_request_its_reactions() -> None:
    assert set(TRANSITIONS) == set(TransactionManagerState)
    assert set(REACTIONS) == set(DEFAULT_REACTIONS) == set(TransactionApi)
