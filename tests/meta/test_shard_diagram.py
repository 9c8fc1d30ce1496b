"""The drawing of a partition's modes is the table that the code follows."""

import re
from pathlib import Path

from penstock.producer.sender.modes import MODE_TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs/design/shard.md"


def test_the_diagram_of_modes_is_the_table() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert drawn == {(mode.value, after.value) for mode, allowed in MODE_TRANSITIONS.items() for after in allowed}
