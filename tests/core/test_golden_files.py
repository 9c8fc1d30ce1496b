"""Files that earlier versions wrote: today's code reads every value of them. tests/golden/README.md says how to add some."""

import json
import shutil
from pathlib import Path

import pytest
from penstock.daemon.ledger.entry_codec import EntryType

from tests.golden.make import MAKERS
from tests.golden.reading import EXPECTED, GOLDEN, READERS, difference

FOLDERS = sorted(path.parent for name in READERS for path in (GOLDEN / name).glob(f"*/{EXPECTED}"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name} {folder.name}")
def test_every_value_of_an_earlier_version_comes_back(folder: Path) -> None:
    expected = json.loads((folder / EXPECTED).read_text(encoding="utf-8"))
    assert difference(READERS[folder.parent.name](folder), expected) is None


def test_every_format_has_files() -> None:
    assert {folder.parent.name for folder in FOLDERS} == set(READERS) == set(MAKERS)


def test_a_golden_segment_has_every_kind_of_entry() -> None:
    newest = max((folder for folder in FOLDERS if folder.parent.name == "segment"), key=lambda folder: folder.name)
    found = READERS["segment"](newest)
    assert {entry["kind"] for entry in found["entries"]} == set(EntryType)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name} {folder.name}")
def test_another_value_is_noticed(folder: Path, tmp_path: Path) -> None:
    """Each number and text of `expected.json` is compared: the test of the test."""
    copy = tmp_path / folder.name
    _ = shutil.copytree(folder, copy)
    expected = (copy / EXPECTED).read_text(encoding="utf-8")
    found = READERS[folder.parent.name](copy)
    assert difference(found, json.loads(expected)) is None
    lines = expected.splitlines()
    for place, line in enumerate(lines):
        head, colon, text = line.partition(": ") if '": ' in line else ("", "", line)
        bare = text.strip().rstrip(",")
        if bare in ("", "{", "}", "[", "]", "[]", "{}"):
            continue
        comma = "," if text.rstrip().endswith(",") else ""
        changed = [*lines[:place], f'{head}{colon}["another"]{comma}', *lines[place + 1 :]]
        assert difference(found, json.loads("\n".join(changed))) is not None, line
