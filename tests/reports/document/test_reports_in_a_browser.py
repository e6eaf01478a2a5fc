"""Reports in Chromium: they fit, and say first what happened and what to do."""

from pathlib import Path
from typing import Any

import pytest
from page_checks import THEMES, WIDTHS, check_page, open_page, serious

from lockstep_reports.analysis.steps import analyse
from lockstep_reports.document.steps import document_steps
from lockstep_reports.render import html

from ..report_command import run_report
from ..synthetic_job import Slow, SyntheticJob, recording_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]
LOGS = Path(__file__).parents[2] / "fixtures" / "joblogs"
REPORTS = ("slow", "log")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a report on steps, and of one on a log."""
    folder = tmp_path_factory.mktemp("reports")
    pages = {name: folder / f"{name}.html" for name in REPORTS}
    job = SyntheticJob(ranks=8, nodes=2, slow=(Slow(rank=5, seconds=0.05),))
    page = html.render(document_steps(analyse(recording_of(job.steps()))), folder)
    pages["slow"].write_text(page, encoding="utf-8")
    run_report(LOGS / "gpu_oom_one_rank_others_time_out.log", "--html", pages["log"])
    return pages


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_fits_any_window_and_says_first_what_to_do(
    browser: Any, reports: dict[str, Path], name: str, width: int
) -> None:
    open_page(browser, reports[name], width)
    check_page(browser, width)
    heading = "return document.querySelector('h2').innerText"
    assert browser.execute_script(heading) == "What to do next"
    bottom = "return document.querySelector('ol').getBoundingClientRect().bottom"
    assert browser.execute_script(bottom) < 900


def test_a_report_names_node_and_job_and_has_the_worst_rank_first(
    browser: Any, reports: dict[str, Path]
) -> None:
    open_page(browser, reports["slow"], 1440)
    head = browser.execute_script("return document.querySelector('h1').innerText")
    assert "synthetic" in head
    assert "Rank 5 was slow in backward on node node-1" in head
    advice = browser.execute_script("return document.querySelector('ol').innerText")
    assert "drain it and start job synthetic again" in advice
    assert "node node-1" in advice
    arrivals = browser.execute_script(
        "return [...document.querySelectorAll('section')].filter(x =>"
        " x.innerText.startsWith('Arrivals'))[0].querySelector('tr:nth-child(2)').innerText"
    )
    assert arrivals.split("\t")[:2] == ["5", "node-1"]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", REPORTS)
def test_axe_core_finds_nothing_bad_in_either_theme(
    browser: Any, reports: dict[str, Path], name: str, theme: str
) -> None:
    open_page(browser, reports[name], 1440, theme)
    is_dark = browser.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert is_dark == (theme == "dark")
    assert serious(browser) == []
