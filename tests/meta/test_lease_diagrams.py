"""The diagrams of the leases page are the tables of the code."""

import ast
import re
from enum import Enum
from pathlib import Path

import pytest
from penstock.daemon.leases.shard_slots import SHARD_SLOT_TRANSITIONS
from penstock.daemon.leases.states import LEASE_TRANSITIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "leases.md"
ROOT = PAGE.parents[2]
CITED = re.compile(r"\b(?:HO|LSE|HOP|JRN|IDN|BMP|ERR|BRK|LOC|PRB|GAP)-\d+\b")
OURS = [
    *("daemon/leases/bus.py", "daemon/leases/shard_peer.py", "daemon/leases/journals.py"),
    *(
        f"daemon/leases/{name}.py"
        for name in ("ownership", "grants", "shard_reports", "table", "lease", "states", "paces", "alarms")
    ),
    *(f"daemon/leases/{name}.py" for name in ("backlog", "batch_bounds", "handout", "refused_batches", "placement")),
    *(f"daemon/leases/{name}.py" for name in ("log_end_search", "shard_slots", "sequence_epochs")),
]


def arrows(table: dict[Enum, frozenset[Enum]]) -> set[tuple[str, str]]:
    return {(state.value, following.value) for state, row in table.items() for following in row}


@pytest.mark.parametrize(("place", "table"), [(0, LEASE_TRANSITIONS), (1, SHARD_SLOT_TRANSITIONS)])
def test_a_diagram_shows_every_arrow_of_its_table_and_no_other(place: int, table: dict[Enum, frozenset[Enum]]) -> None:
    diagram = re.findall(r"```mermaid\n(.*?)```", PAGE.read_text(), re.DOTALL)[place]

    assert set(re.findall(r"(\w+) --> (\w+)", diagram)) == arrows(table)


def test_every_rule_the_code_names_is_on_the_page() -> None:
    page = PAGE.read_text()
    cited = {rule for name in OURS for rule in CITED.findall((ROOT / name).read_text())}

    assert cited
    assert {rule for rule in cited if f"| {rule} |" not in page} == set()


def test_only_the_table_changes_a_lease() -> None:
    changed = [
        f"{path.name}:{node.lineno} {node.attr}"
        for path in sorted((ROOT / "daemon" / "leases").glob("*.py"))
        if path.name != "table.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "lease"
    ]
    assert changed == []
