"""Every rule that is named by a short id is defined in docs/design, and none is defined that nobody names."""

import re
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DESIGN: Final = ROOT / "docs" / "design"
INDEX: Final = DESIGN / "rules.md"
CITED: Final = re.compile(r"\b(?:HO|[A-Z]{3})-\d+\b")
DEFINED: Final = re.compile(r"^(?:\| |\* \*\*)((?:HO|[A-Z]{3})-\d+)(?: \||\*\*)", re.MULTILINE)
# Kafka's proposals, and words of computing.
FOREIGN: Final = re.compile(r"(?:KIP|CRC|UTF|SSH|SHA|ISO)-\d+")
PLACE: Final = re.compile(r"`([\w/]+\.py)`")


def texts() -> dict[Path, str]:
    """Every text file that is or is about to be in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, text=True, capture_output=True).stdout.split("\0")
    suffixes = {".py", ".pyi", ".pxd", ".md", ".toml", ".conf", ".service", ".sh"}
    paths = [ROOT / name for name in listed if Path(name).suffix in suffixes]
    return {path: path.read_text() for path in paths if path.is_file()}


def cited(text: str) -> set[str]:
    return {found for found in CITED.findall(text) if not FOREIGN.fullmatch(found)}


def test_every_rule_that_is_cited_is_defined() -> None:
    defined = {rule for page in DESIGN.glob("*.md") for rule in DEFINED.findall(page.read_text())}
    missing = {
        rule: str(path.relative_to(ROOT))
        for path, text in texts().items()
        for rule in cited(text)
        if rule not in defined
    }
    assert missing == {}


def test_every_rule_of_the_index_is_cited_somewhere_else() -> None:
    elsewhere = {rule for path, text in texts().items() if path != INDEX for rule in cited(text)}
    idle = set(DEFINED.findall(INDEX.read_text())) - elsewhere
    assert idle == set()


def test_every_rule_of_another_page_is_in_the_index() -> None:
    index = set(DEFINED.findall(INDEX.read_text()))
    assert index
    missing = {
        rule: page.name
        for page in DESIGN.glob("*.md")
        for rule in DEFINED.findall(page.read_text())
        if rule not in index
    }
    assert missing == {}


def test_no_rule_is_defined_twice_on_the_index() -> None:
    rules = DEFINED.findall(INDEX.read_text())
    assert sorted(set(rules)) == sorted(rules)


def test_the_index_points_at_files_that_are_there() -> None:
    """A bare name lies in the folder of the path before it, or beside it in `core`."""
    for line in INDEX.read_text().splitlines():
        if not DEFINED.match(line):
            continue
        folder = ROOT
        for place in PLACE.findall(line.rpartition("| ")[0].rpartition("|")[2] or line):
            path = ROOT / place if "/" in place else folder / place
            assert path.is_file(), f"{line.split('|')[1].strip()}: {place}"
            folder = path.parent
