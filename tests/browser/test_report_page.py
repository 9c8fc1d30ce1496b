"""The report in a real browser: seen, clicked, filtered, sorted, read by keyboard, in the dark, on a narrow screen, on paper."""

import dataclasses
import itertools
from collections.abc import Callable

import pytest
from penstock.pipeline.report.data import ReportData
from penstock.pipeline.report.view import ReportLimits
from selenium.webdriver.common.keys import Keys

from tests.harness import report_samples as samples
from tests.harness.browser import Browser, Page

Opener = Callable[..., Page]


def test_the_verdict_is_what_is_seen_first(show: Opener) -> None:
    page = show(samples.troubled())
    assert page.text("h1") == "7 records are lost and 11 landed twice"
    assert page.run("return document.querySelector('h1').getBoundingClientRect().bottom") < 300
    assert page.driver.title.startswith("7 records are lost")
    assert "4,969,661 of 4,972,800" in page.text(".verdict .lead")


def test_a_good_run_says_so_and_what_can_be_done(show: Opener) -> None:
    page = show(samples.good())
    assert page.text("h1") == "Complete: every record arrived, each one once"
    assert "penstock-pipeline seal" in page.text(".finding.complete")
    assert page.texts(".finding h2") == ["1 topic hour complete"]
    assert page.texts(".empty") == [
        "No id is missing.", "No id has landed twice.", "No id is a hole.", "No row is recovered or foreign.",
    ]  # fmt: skip


def test_a_run_that_found_nothing_has_a_page_too(show: Opener) -> None:
    page = show(samples.empty())
    assert page.text("h1") == "Nothing came in, nothing is missing"
    assert "penstock audit create-topic" in page.text(".findings")
    assert page.all("form") == []


def test_every_lost_id_is_named_on_the_page_with_what_to_do(show: Opener) -> None:
    page = show(samples.troubled())
    lost = [cells for cells in page.rows("missing") if cells[0] == "lost"]
    assert [(cells[1], cells[4], cells[5]) for cells in lost] == [
        ("clicks", "3f2a9c000000-3-104117 … 104120", "4"),
        ("clicks", "3f2a9c000000-5-99001 … 99003", "3"),
    ]
    card = page.text(".finding.lost")
    assert "3f2a9c000000-3-104117 … 104120" in card
    assert "What to do" in card


def test_every_doubled_id_is_named_with_its_places(show: Opener) -> None:
    page = show(samples.troubled())
    rows = page.rows("duplicates")
    assert len(rows) == 11
    assert rows[0][3] == "3f2a9c01d3f1-0-61000"
    assert rows[0][5] == "partition 0 offset 700,100, partition 0 offset 901,000"
    assert "and 6 more" in page.text(".finding.duplicated")


def test_a_click_on_a_status_leaves_only_its_rows(show: Opener) -> None:
    page = show(samples.troubled())
    page.click(".chip.lost")
    assert {cells[0] for cells in page.rows("hours")} == {"lost"}
    assert page.rows("duplicates") == []
    assert page.texts("#duplicates .none") == ["No row passes the filter."]
    page.click(".chip.duplicated")
    assert {cells[0] for cells in page.rows("hours")} == {"lost", "duplicated"}
    page.click("#filter-reset")
    page.wait("document.getElementById('filter-told').textContent === '41 of 41 rows'")
    assert len(page.rows("hours")) == 16


def test_topic_hour_and_words_filter_together(show: Opener) -> None:
    page = show(samples.troubled())
    page.choose("#filter-topic", "orders")
    assert {cells[2] for cells in page.rows("hours")} == {"orders"}
    assert page.texts(".strip h3") == ["orders"]
    assert page.texts(".latency h3") == ["orders"]
    page.choose("#filter-hour", "2026-07-17 07:00")
    assert [cells[0] for cells in page.rows("hours")] == ["late"]
    page.type("#filter-text", "NOT SETTLED")
    assert [cells[6] for cells in page.rows("missing")] == ["not settled"]
    assert page.rows("hours") == []


def test_the_filter_is_in_the_address_and_comes_back_with_it(show: Opener) -> None:
    first = show(samples.troubled())
    first.choose("#filter-topic", "clicks")
    first.click(".chip.duplicated")
    fragment = first.run("return location.hash")
    again = show(samples.troubled(), fragment=fragment)
    assert {cells[0] for cells in again.rows("hours")} == {"duplicated"}
    assert again.run("return document.getElementById('filter-topic').value") == "clicks"


def test_a_head_sorts_by_numbers_and_turns_around(show: Opener) -> None:
    page = show(samples.troubled())
    accepted = "#hours th:nth-child(5)"
    page.click(f"{accepted} button")
    counts = [int(cells[4].replace(",", "")) for cells in page.rows("hours")]
    assert counts == sorted(counts, reverse=True)
    assert page.run("return document.querySelector(arguments[0]).ariaSort", accepted) == "descending"
    page.click(f"{accepted} button")
    counts = [int(cells[4].replace(",", "")) for cells in page.rows("hours")]
    assert counts == sorted(counts)
    page.click("#hours th:nth-child(1) button")
    assert page.run("return document.querySelector(arguments[0]).ariaSort", accepted) is None
    assert [cells[0] for cells in page.rows("hours")][-1] == "lost"


def test_a_picture_tells_by_keys_what_a_bar_stands_for(show: Opener) -> None:
    page = show(samples.troubled())
    strip = "svg[data-picture=t0]"
    page.run("document.querySelector(arguments[0]).focus()", strip)
    page.type(strip, Keys.HOME)
    first = page.text("#tip")
    assert first.startswith("clicks\n2026-07-17 03:00 to 03:02 UTC\n")
    page.type(strip, Keys.ARROW_RIGHT)
    assert "03:02 to 03:04" in page.text("#tip")
    for _ in range(36):
        page.type(strip, Keys.ARROW_RIGHT)
    assert page.text("#tip").endswith("7 lost")
    page.type(strip, Keys.ESCAPE)
    assert page.texts("#tip") == []


def test_the_hosts_picture_tells_of_a_host_and_its_minute(show: Opener) -> None:
    page = show(samples.troubled())
    heat = "svg[data-picture=heat]"
    page.run("document.querySelector(arguments[0]).focus()", heat)
    page.type(heat, Keys.END)
    assert page.text("#tip").startswith("edge-01.example\n")
    page.type(heat, Keys.ARROW_DOWN)
    assert page.text("#tip").startswith("edge-02.example\n")
    assert page.texts(".heat .rows .lost") == ["edge-01.example"]


def test_everything_that_does_something_can_be_reached_by_the_tab_key(show: Opener) -> None:
    page = show(samples.troubled())
    reached: list[str] = []
    for _ in range(40):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(
            page.run(
                "const e = document.activeElement; return e.id || e.value || e.dataset.picture || e.textContent.trim()"
            )
        )
    assert reached[0] == "To the verdict"
    wanted = ["filter-topic", "filter-hour", "lost", "filter-text", "filter-reset", "t0", "heat"]
    assert [name for name in reached if name in wanted] == wanted


def test_every_part_has_a_name_for_those_who_listen(show: Opener) -> None:
    page = show(samples.troubled())
    nameless = page.run(
        """return [...document.querySelectorAll('main section, form, svg[role=img], .scroll, select, input')].filter((e) =>
             !(e.ariaLabel || e.labels?.length || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent.trim()))
           .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    levels = [
        int(tag[1]) for tag in page.run("return [...document.querySelectorAll('h1,h2,h3')].map((e) => e.tagName)")
    ]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert "99.9998 %" in page.run("return document.querySelector('svg[data-picture=t0]').ariaLabel")


def test_hostile_names_are_only_names(show: Opener) -> None:
    page = show(samples.hostile())
    assert page.run("return window.hurt") is None
    assert page.run("return document.images.length + document.scripts.length") == 2
    assert page.rows("missing")[0][1] == samples.HOSTILE
    assert samples.HOSTILE in page.text("footer")
    assert r"\u202eevil\u2066" in page.texts(".strip h3")
    page.choose("#filter-topic", samples.HOSTILE)
    assert [cells[2] for cells in page.rows("hours")] == [samples.HOSTILE]
    page.type("#filter-text", "<img")
    assert len(page.rows("hours")) == 1
    assert page.spills() == (0, [])


def test_thousands_of_hours_and_hosts_are_bounded_and_what_is_left_out_is_said(show: Opener) -> None:
    page = show(samples.huge())
    assert page.run("return document.getElementsByTagName('*').length") < 60_000
    assert len(page.all(".strip[data-topic]")) == 60
    assert len(page.all(".heat .rows li")) == 60
    assert page.texts(".heat .rows li")[-1] == "1,441 more hosts"
    assert page.run("return document.querySelectorAll('#hours tbody tr').length") == 1_000
    left_out = page.text("#left-out")
    assert "Shown: 5,000 of 15,000 ranges of lost ids." in left_out
    assert "the 60 topics to look at first, of 300" in left_out
    assert page.spills() == (0, [])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("sample", [samples.troubled, samples.good, samples.empty])
def test_every_text_can_be_read(show: Opener, sample: Callable[[], ReportData], dark: bool) -> None:
    page = show(sample(), dark=dark)
    ratio, text = page.lowest_contrast(dark=dark)
    assert ratio >= 4.5, text
    ground = page.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(ground) < 60) is dark


@pytest.mark.parametrize("width", [320, 760, 1280, 2200])
def test_nothing_stands_out_of_the_window(show: Opener, width: int) -> None:
    page = show(samples.troubled(), width=width)
    assert page.spills() == (0, [])


def test_on_paper_all_rows_are_there_and_the_controls_are_not(show: Opener, browser: Browser) -> None:
    page = show(samples.troubled(), width=1_045)  # A4 across, in the pixels of paper
    browser.as_printed()
    assert page.all(".filters, .copy") == []
    heights = page.run("const s = document.querySelector('#hours .scroll'); return [s.clientHeight, s.scrollHeight]")
    assert heights[0] == heights[1]
    assert page.spills()[0] == 0


def test_a_page_may_be_cut_shorter_by_whoever_makes_it(show: Opener) -> None:
    page = show(samples.troubled(), limits=ReportLimits(rows=3, topics=1, hosts=2, columns=60))
    assert len(page.rows("hours")) == 3
    assert page.rows("hours")[0][0] == "lost"
    assert page.texts("#hours .left-out") == [
        "Shown: the first 3 of 16 rows, the worst first; the totals above count all of them."
    ]
    assert page.texts(".heat .rows li") == ["edge-01.example", "3 more hosts"]


def test_without_its_script_the_page_still_tells_everything(show: Opener, browser: Browser) -> None:
    """As in a mail program: verdict, names and pictures are markup; only filters, sorting and tips need the script."""
    data = dataclasses.replace(samples.troubled(), run_id="no-script")
    browser.allow_scripts(allowed=False)
    try:
        page = show(data)
        assert page.text("h1") == "7 records are lost and 11 landed twice"
        assert page.all("form") == []
        assert len(page.all("#missing tbody tr")) == 4
        assert len(page.all(".strip[data-topic] svg")) == 3
    finally:
        browser.allow_scripts(allowed=True)
