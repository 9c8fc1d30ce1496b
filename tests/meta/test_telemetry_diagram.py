"""The drawing of telemetry's states is the table that the code follows."""

import re
from pathlib import Path

from penstock.producer.telemetry.subscription import TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs/design/telemetry.md"


def test_the_diagram_of_telemetry_is_the_table() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert drawn == {(state.name, after.name) for state, allowed in TRANSITIONS.items() for after in allowed}
