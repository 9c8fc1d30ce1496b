"""The locked requirements: they go on top of each other, and hosts get no tools of tests."""

import re
import tomllib
from typing import Final

import pytest

from tests.meta.test_shape import ROOT

HOSTS: Final = ("daemon", "pipeline")
# Delta's connector wants a Spark of its own.
APART: Final = {"jvm": {"pyspark"}}


def locked(name: str) -> dict[str, str]:
    """Packages and versions of one file."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))


def wanted(requirements: list[object]) -> set[str]:
    """Names of packages, without those of other groups."""
    return {re.split(r"[\[<>=]", each)[0].lower() for each in requirements if isinstance(each, str)}


def test_a_package_has_one_version_whichever_files_were_installed() -> None:
    versions: dict[str, set[str]] = {}
    for path in (ROOT / "requirements").glob("*.txt"):
        for package, version in locked(path.stem).items():
            if package not in APART.get(path.stem, ()):
                versions.setdefault(package, set()).add(version)
    assert len(versions) > 50
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_gets_what_it_needs_and_nothing_of_the_tests(host: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    needed = wanted([*project["project"]["dependencies"], *extras["daemon"], *extras[host]])
    assert needed - set(locked(host)) == set()
    tools = set[str]().union(*map(wanted, project["dependency-groups"].values())) - needed
    assert len(tools) > 10
    assert tools & set(locked(host)) == set()
