"""Each fault of other clients has a test that it is not ours, and what the tests name is in the table."""

from collections import Counter

import pytest

from tests.conformance import faults
from tests.conformance.faults import PAGE, Fault, read_faults, read_tests

EVERY = read_faults()


@pytest.mark.parametrize("fault", EVERY, ids=[fault.id for fault in EVERY])
def test_every_fault_has_a_test(fault: Fault) -> None:
    assert fault.id in faults.tests_of(read_tests())


def test_every_fault_that_a_test_names_is_in_the_table_once() -> None:
    ids = Counter(fault.id for fault in EVERY)
    assert max(ids.values()) == 1
    assert set(faults.tests_of(read_tests())) == set(ids)


def test_every_fault_says_in_words_what_it_is_and_where_it_was_reported() -> None:
    for fault in EVERY:
        assert fault.fault.endswith(".")
        assert fault.here.endswith(".")
        assert "|" not in fault.fault + fault.here + fault.client
        assert all(issue.startswith("https://github.com/") for issue in fault.issues)


def test_the_page_of_faults_is_what_the_table_and_the_tests_say() -> None:
    assert PAGE.read_text() == faults.page(EVERY, read_tests()), "run `make docs`"
