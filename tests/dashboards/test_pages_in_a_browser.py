"""Pages of boards in Debian's Chromium: no error, no request, no text beyond its box, axe-core."""

from pathlib import Path
from typing import Any

import pytest
from page_checks import WIDTHS, check_page, links, open_page, serious

from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.snapshot.page import PageOptions, board_page

from .board_answers import answer
from .fake_prometheus import FakePrometheus

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]
BASES = {
    "boards": "https://grafana.example",
    "runbooks": "https://pager.example/runbooks",
    "ledger": "https://ledger.example",
}
RANKS = [
    ({"rank": str(n), "job_id": "demo", "node": f"node-{n:04d}", "le": str(n), "state": f"s{n}",
      "alertname": "TrainFabricDegradedOverFourNodes", "slo": "job_success_gpu_seconds"}, 1.0 + n)
    for n in range(1, 7)
]  # fmt: skip


# The others have the same style sheet.
OTHERS = [pytest.param(name, marks=pytest.mark.release) for name in BOARDS if name != "job.json"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The page of each board in each theme, with links."""
    folder, written = tmp_path_factory.mktemp("pages"), {}
    for name, board in BOARDS.items():
        fake = FakePrometheus(series=RANKS, events=[{"alertname": "A", "attempt": "1"}])
        found = answer(board, fake)
        for theme in ("light", "dark"):
            options = PageOptions(address="", theme=theme, bases=BASES)
            path = folder / f"{name}-{theme}.html"
            path.write_text(board_page(found, options), encoding="utf-8")
            written[name, theme] = path
    return written


@pytest.mark.parametrize("name", BOARDS)
def test_a_page_draws_without_error_request_text_beyond_its_box_or_what_axe_core_finds(
    browser: Any, pages: dict[tuple[str, str], Path], name: str
) -> None:
    draw(browser, pages[name, "light"], max(WIDTHS))
    assert serious(browser) == []


@pytest.mark.parametrize("name", ["job.json", *OTHERS])
def test_a_page_fits_a_phone(browser: Any, pages: dict[tuple[str, str], Path], name: str) -> None:
    draw(browser, pages[name, "light"], min(WIDTHS))


def draw(browser: Any, page: Path, width: int) -> None:
    """Opens a page; it is drawn without an error, a request or a text beyond its box."""
    open_page(browser, page, width)
    assert browser.execute_script("return document.documentElement.dataset.drawn") == "yes"
    check_page(browser, width)
    drawn, boxes = browser.execute_script(
        "return [document.querySelectorAll('.plot canvas').length,"
        " document.querySelectorAll('.plot').length]"
    )
    assert drawn == boxes


@pytest.mark.parametrize("name", ["job.json", *OTHERS])
def test_dark_pages_are_legible(
    browser: Any, pages: dict[tuple[str, str], Path], name: str
) -> None:
    open_page(browser, pages[name, "dark"], 1440)
    assert serious(browser, "color-contrast") == []


def test_a_click_hides_a_series_and_the_button_saves_csv(
    browser: Any, pages: dict[tuple[str, str], Path]
) -> None:
    open_page(browser, pages["job.json", "light"], 1440)
    pressed = "return document.querySelector('.legend button').getAttribute('aria-pressed')"
    assert browser.execute_script(pressed) == "true"
    browser.execute_script("document.querySelector('.legend button').click()")
    assert browser.execute_script(pressed) == "false"
    text = browser.execute_async_script(
        "const done = arguments[0];"
        " URL.createObjectURL = (blob) => { blob.text().then(done); return 'blob:x'; };"
        " HTMLAnchorElement.prototype.click = () => {};"
        " document.querySelector('article:has(.plot) .csv').click();"
    )
    lines = text.splitlines()
    assert lines[0].startswith('"time",')
    assert len(lines) == 162
    bases = (f"{BASES['boards']}/d/lockstep-", BASES["ledger"] + "/jobs/", BASES["runbooks"] + "/")
    found = links(browser)
    assert found
    assert all(link.startswith(bases) for link in found)
