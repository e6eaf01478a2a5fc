"""Pages of the ledger in Chromium: they fit, lead somewhere, and show goals and no unknowns."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from page_checks import THEMES, WIDTHS, check_page, links, open_page, serious

from ..service import application
from ..stories import Story, delivery

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]
LEDGER = ("/", "/jobs/failed?cluster=east", "/jobs/bare?cluster=east", "/costs")
"""Of one job the ledger knows little."""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, Path]]]:
    """A client of the ledger, and the file that each of its pages is written to."""
    folder, now = tmp_path_factory.mktemp("ledger"), time.time() - 7200
    fields: dict[str, Any] = {
        "num_nodes": 1,
        "num_gpus": 8,
        "project": "language",
        "queue": "large-and-preemptible",
    }
    long_name = "pretrain-70b-" + "x" * 40
    stories = [
        Story(job_id=name, now=now).start(**fields, price_per_gpu_hour=2.5, currency="EUR")
        .after(3000).end(outcome)
        for name, outcome in (("failed", "failed"), (long_name, "succeeded"))
    ]  # fmt: skip
    stories.append(Story(job_id="bare", now=now).start(num_nodes=1))
    with application(str(folder / "ledger.db")) as (client, parts, _):
        for story in stories:
            assert client.post("/api/events", content=delivery(story.events)).status_code == 200
        parts.windows.refresh()
        pages = {}
        for number, address in enumerate(LEDGER):
            answer = client.get(address)
            assert answer.status_code == 200, answer.text
            pages[address] = folder / f"{number}.html"
            pages[address].write_text(answer.text, encoding="utf-8")
        yield client, pages


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("address", LEDGER)
def test_a_page_of_the_ledger_fits_any_window_and_its_links_lead_somewhere(
    browser: Any, ledger: tuple[Any, dict[str, Path]], address: str, width: int
) -> None:
    client, pages = ledger
    open_page(browser, pages[address], width)
    check_page(browser, width)
    found = [url.removeprefix("file://") for url in links(browser)]
    assert found
    for url in found:
        # A link without a path stays on the page.
        target = urlsplit(address).path + "?" + url.partition("?")[2]
        path = target if urlsplit(url).path == str(pages[address]) else url
        assert client.get(path).status_code == 200, path


def test_a_share_stands_beside_its_goal_and_what_is_unknown_is_absent(
    browser: Any, ledger: tuple[Any, dict[str, Path]]
) -> None:
    _, pages = ledger
    open_page(browser, pages["/"], 1440)
    rows = browser.execute_script(
        "return [...document.querySelectorAll('table')][0].innerText.split('\\n')"
    )
    [success] = [row.split("\t") for row in rows if "job success" in row and "28d" in row]
    assert success[3:5] == ["50.0%", "95.0%"]
    for job, absent in (
        ("bare", {"GPU hours", "goodput", "ETTR", "cost", "deadline (UTC)"}),
        # Its ranks have not said what they did.
        ("failed", {"goodput", "ETTR", "deadline (UTC)"}),
    ):
        open_page(browser, pages[f"/jobs/{job}?cluster=east"], 1440)
        terms = browser.execute_script(
            "return [...document.querySelectorAll('dt')].map(x=>x.innerText)"
        )
        assert "status" in terms
        assert not absent & set(terms)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("address", LEDGER)
def test_axe_core_finds_nothing_bad_in_either_theme(
    browser: Any, ledger: tuple[Any, dict[str, Path]], address: str, theme: str
) -> None:
    open_page(browser, ledger[1][address], 1440, theme)
    is_dark = browser.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert is_dark == (theme == "dark")
    assert serious(browser) == []
