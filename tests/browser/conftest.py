"""One browser for the whole folder, and pages of the report in files of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from penstock.pipeline.report.data import ReportData
from penstock.pipeline.report.page import render, write
from penstock.pipeline.report.view import ReportLimits

from tests.harness.browser import Browser, Page

Opener = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    """Render, write and open a page; afterwards nothing may have gone wrong in it, nor anything have been asked of a network."""
    opened: list[Page] = []

    def opener(
        data: ReportData,
        *,
        limits: ReportLimits | None = None,
        width: int = 1280,
        dark: bool = False,
        fragment: str = "",
    ) -> Page:
        file = tmp_path / f"report-{len(opened)}.html"
        write(file, render(data, limits))
        page = browser.open(file, width=width, dark=dark, fragment=fragment)
        opened.append(page)
        return page

    yield opener
    assert browser.complaints() == []
    assert browser.requests() == [], "the page asked for something"
