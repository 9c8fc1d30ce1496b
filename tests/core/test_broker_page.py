"""The reference page of the embedded broker says what the code does."""

import re
from pathlib import Path

from penstock.broker.arguments import parser
from penstock.broker.requests.dispatch import APIS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "embedded-broker.md").read_text()


def test_the_versions_on_the_page_are_those_that_are_offered() -> None:
    told = {
        name: (int(low), int(high or low))
        for name, low, high in re.findall(r"\| (\w+) \| (\d+)(?:\u2013(\d+))? ", PAGE)
    }
    offered = {api.request.__name__.removesuffix("Request"): (api.lowest, api.highest) for api in APIS.values()}
    assert told == offered


def test_every_option_is_on_the_page_and_no_other() -> None:
    told = set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE))
    known = {option for action in parser()._actions for option in action.option_strings}
    assert told == known - {"-h", "--help"}
