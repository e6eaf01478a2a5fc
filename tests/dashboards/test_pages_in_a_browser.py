"""Pages of boards in Debian's Chromium: no error, no request, no text beyond its box, axe-core."""

import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep_dashboards.boards import BOARDS
from lockstep_dashboards.snapshot.page import PageOptions, board_page

from .board_answers import answer
from .fake_prometheus import FakePrometheus

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]
WIDTHS = (390, 1440)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
RANKS = [
    ({"rank": str(n), "job_id": "demo", "node": f"node-{n:04d}", "le": str(n), "state": f"s{n}",
      "alertname": "TrainFabricDegradedOverFourNodes", "slo": "job_success_gpu_seconds"}, 1.0 + n)
    for n in range(1, 7)
]  # fmt: skip
TOO_WIDE = """
return [...document.querySelectorAll('main *')].filter((x) => {
  const box = x.getBoundingClientRect();
  if (!box.width || x.closest('.plot, svg, canvas, details')) return false;
  const style = getComputedStyle(x);
  const scrolls = /auto|scroll/.test(style.overflowX);
  return (!scrolls && x.scrollWidth > x.clientWidth + 1 && style.display !== 'inline')
    || box.right > document.documentElement.clientWidth + 1 && !x.closest('.table, .bars');
}).map((x) => `${x.tagName}.${x.className}: ${x.textContent.slice(0, 40)}`)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if shutil.which("chromedriver") is None or shutil.which("chromium") is None:
        pytest.skip("not on PATH: chromium and chromedriver (Debian package chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The page of each board in each theme, with links."""
    folder, written = tmp_path_factory.mktemp("pages"), {}
    for name, board in BOARDS.items():
        fake = FakePrometheus(series=RANKS, events=[{"alertname": "A", "attempt": "1"}])
        found = answer(board, fake)
        for theme in ("light", "dark"):
            options = PageOptions(address="", theme=theme, links_base="https://grafana.example")
            path = folder / f"{name}-{theme}.html"
            path.write_text(board_page(found, options), encoding="utf-8")
            written[name, theme] = path
    return written


def open_page(browser: Any, path: Path, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(path.as_uri())
    browser.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 50));"
    )


def requests(browser: Any) -> list[str]:
    """Addresses that the page asked for, of any scheme but the file's own."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [x["params"]["request"]["url"] for x in messages if x["method"].endswith("WillBeSent")]
    return [url for url in sent if not url.startswith(("file:", "data:", "blob:", "about:"))]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", BOARDS)
def test_a_page_draws_without_error_request_or_text_beyond_its_box(
    browser: Any, pages: dict[tuple[str, str], Path], name: str, width: int
) -> None:
    open_page(browser, pages[name, "light"], width)
    assert browser.execute_script("return document.documentElement.dataset.drawn") == "yes"
    assert [x["message"] for x in browser.get_log("browser")] == []
    assert requests(browser) == []
    assert browser.execute_script(TOO_WIDE) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    drawn, boxes = browser.execute_script(
        "return [document.querySelectorAll('.plot canvas').length,"
        " document.querySelectorAll('.plot').length]"
    )
    assert drawn == boxes


def test_what_is_wider_than_its_box_is_found(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "wide.html"
    path.write_text("<main><p style='width: 50px; overflow: hidden'>" + "W" * 99 + "</p></main>")
    open_page(browser, path, 1440)
    assert len(browser.execute_script(TOO_WIDE)) == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", BOARDS)
def test_axe_core_finds_nothing_serious(
    browser: Any, pages: dict[tuple[str, str], Path], name: str, theme: str
) -> None:
    axe = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    script = next(Path(importlib.import_module(axe.__name__).__path__[0]).rglob("axe.min.js"))
    open_page(browser, pages[name, theme], 1440)
    browser.execute_script(script.read_text(encoding="utf-8"))
    violations = browser.execute_async_script(
        "axe.run().then((found) => arguments[0](found.violations))"
    )
    serious = [
        (x["id"], x["nodes"][0]["html"][:150], x["nodes"][0].get("failureSummary", "")[:150])
        for x in violations
        if x["impact"] in {"serious", "critical"}
    ]
    assert serious == []


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
    links = browser.execute_script(
        "return [...document.querySelectorAll('a[href]')].map(x=>x.href)"
    )
    assert links
    assert all(link.startswith("https://grafana.example/d/lockstep-") for link in links)
