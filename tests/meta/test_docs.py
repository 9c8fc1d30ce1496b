"""The documentation names nothing that is not there: pages, sections, tests, verbs, options, settings."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from penstock.cli import reference as command_line
from penstock.config.load import load
from penstock.config.pipeline import load_pipeline
from penstock.daemon.leases.states import BlockReason
from penstock.pipeline import reference_pages as pipeline_command
from penstock.wire.frames import Code

ROOT: Final = Path(__file__).resolve().parents[2]
LINK: Final = re.compile(r"(?<!!)\[[^]\n]+\]\(([^)\s]+)\)")
HEADING: Final = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEST: Final = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
COMMAND: Final = re.compile(r"(?:^|/|&& )penstock ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)([^\n`|;&#]*)", re.MULTILINE)

PIPELINE: Final = re.compile(r"(?:^|/| )penstock-pipeline ([a-z][a-z-]*)([^\n`|;&#]*)", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: where, in which language, what."""

    page: str
    language: str
    text: str


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        text=True,
        capture_output=True,
    ).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def blocks(*languages: str) -> Iterator[Block]:
    for page in pages():
        for language, text in FENCE.findall(page.read_text()):
            if language in languages:
                yield Block(str(page.relative_to(ROOT)), language, text)


def anchor(heading: str) -> str:
    """A heading as browsers of repositories name it in links."""
    words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return words.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(FENCE.sub("", page.read_text()))}


def test_there_are_pages_to_look_at() -> None:
    assert len(pages()) > 20
    assert ROOT / "README.md" in pages()


def test_every_link_leads_somewhere() -> None:
    broken: list[str] = []
    for page in pages():
        for target in LINK.findall(FENCE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, section = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            if not found.exists() or (section and section not in anchors(found)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in LINK.findall(page.read_text()):
            found = (page.parent / target.partition("#")[0]).resolve()
            if found.is_dir():
                waiting += found.glob("*.md")
            elif found.suffix == ".md" and found.is_file():
                waiting.append(found)
    lonely = {str(page.relative_to(ROOT)) for page in pages() if (ROOT / "docs") in page.parents} - {
        str(page.relative_to(ROOT)) for page in reached
    }
    assert lonely == set()


def test_every_test_that_is_named_as_proof_exists() -> None:
    missing: list[str] = []
    named = 0
    for page in pages():
        for path, name in TEST.findall(page.read_text()):
            named += 1
            found = ROOT / path
            if not found.is_file() or (name and f"def {name}(" not in found.read_text()):
                missing.append(f"{page.relative_to(ROOT)}: {path}::{name}")
    assert missing == []
    assert named > 20


@pytest.mark.parametrize("block", [*blocks("toml")], ids=lambda block: block.page)
def test_every_settings_example_is_accepted(block: Block, tmp_path: Path) -> None:
    """An example that shows a part gets what every file must have."""
    if "pipeline" in block.page:
        _accept_pipeline(block, tmp_path)
        return
    (tmp_path / "conf.d").mkdir()
    if "bootstrap.servers" not in block.text:
        (tmp_path / "conf.d" / "brokers.toml").write_text('[kafka]\nbootstrap.servers = "localhost:9092"\n')
    file = tmp_path / "penstock.toml"
    file.write_text(block.text)
    assert load(file).kafka.bootstrap_servers


def _accept_pipeline(block: Block, folder: Path) -> None:
    least = {
        "tables": 'tables = "/t"\n',
        "checkpoints": 'checkpoints = "/c"\n',
        "bootstrap.servers": 'kafka.bootstrap.servers = "localhost:9092"\n',
        "[topics.": "[topics.any]\n",
    }
    file = folder / "pipeline.toml"
    file.write_text(block.text)
    drop_ins = folder / "pipeline.conf.d"
    drop_ins.mkdir()
    (drop_ins / "rest.toml").write_text("".join(line for name, line in least.items() if name not in block.text))
    assert load_pipeline(file).topics


def test_every_command_of_the_pipeline_in_an_example_is_there_with_its_options() -> None:
    known = pipeline_command.options()
    seen = 0
    for block in blocks("sh", "ini", ""):
        for verb, rest in PIPELINE.findall(block.text.replace("\\\n", " ")):
            assert verb in known, f"{block.page}: penstock-pipeline {verb}"
            given = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
            assert given <= known[verb], f"{block.page}: penstock-pipeline {verb}{rest}"
            seen += 1
    assert seen > 5


def test_every_command_in_an_example_is_there_with_its_options() -> None:
    known = command_line.options()
    seen = 0
    for block in blocks("sh", "ini"):
        for words, rest in COMMAND.findall(block.text.replace("\\\n", " ")):
            first, _, second = words.partition(" ")
            assert first in known or any(verb.startswith(f"{first} ") for verb in known), (
                f"{block.page}: penstock {words}"
            )
            verb = words if words in known else first
            assert verb in known, f"{block.page}: penstock {words}"
            seen += 1
            if verb == "broker":
                continue
            given = re.findall(r"(?<!\S)--[a-z][a-z-]*", f" {second} {rest}")
            assert set(given) <= known[verb], f"{block.page}: penstock {words}{rest}"
    assert seen > 10


def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    assert (ROOT / "docs/reference/command-line.md").read_text() == command_line.page(), "run `make docs`"


def test_every_reason_of_an_alarm_has_its_advice() -> None:
    page = (ROOT / "docs/howto/operate.md").read_text()
    assert {why.value for why in BlockReason if f"| `{why.value}` |" not in page} == set()


def test_every_code_of_a_refusal_is_in_the_protocol() -> None:
    page = (ROOT / "docs/reference/protocol.md").read_text()
    assert {str(code) for code in Code if f"`{code}`" not in page} == set()


def test_every_word_of_the_glossary_is_there_once_and_in_order() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs/reference/glossary.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    assert rows == sorted(set(rows), key=str.lower)
