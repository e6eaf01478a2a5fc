"""Debian's Chromium by Selenium: opens pages, and says what is wrong with them."""

import importlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers import wait_until

WIDTHS = (390, 1440)
MOBILE = 500  # pixels, below which a window is that of a phone
THEMES = ("light", "dark")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
TOO_WIDE = """
return [...document.querySelectorAll('main *')].filter((x) => {
  const box = x.getBoundingClientRect();
  if (!box.width || x.closest('.plot, .js-plotly-plot, svg, canvas, details')) return false;
  const style = getComputedStyle(x);
  const scrolls = /auto|scroll/.test(style.overflowX);
  return (!scrolls && x.scrollWidth > x.clientWidth + 1 && style.display !== 'inline')
    || box.right > document.documentElement.clientWidth + 1 && !x.closest('.table, .bars');
}).map((x) => `${x.tagName}.${x.className}: ${x.textContent.slice(0, 40)}`)
"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A driver of a Chromium without a window; skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
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


def open_page(browser: Any, address: Path | str, width: int, theme: str = "light") -> None:
    """Opens a file or an address, of a reader who prefers a theme, and waits for two frames."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < MOBILE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    preference = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", preference)
    browser.get_log("performance")  # of the page before
    browser.get(address.as_uri() if isinstance(address, Path) else address)
    ready = (
        "return !document.querySelector('[role=status]') || document.documentElement.dataset.drawn"
    )
    wait_until(lambda: browser.execute_script(ready), 10)
    browser.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 50));"
    )


def requests(browser: Any, own: str = "file:") -> list[str]:
    """Addresses that the page asked for, of any scheme or host but its own."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [x["params"]["request"]["url"] for x in messages if x["method"].endswith("WillBeSent")]
    return [url for url in sent if not url.startswith((own, "data:", "blob:", "about:"))]


def check_page(browser: Any, width: int, own: str = "file:") -> None:
    """No message on the console, no request elsewhere, no text wider than its box or the window."""
    assert [x["message"] for x in browser.get_log("browser")] == []
    assert requests(browser, own) == []
    assert browser.execute_script(TOO_WIDE) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def links(browser: Any) -> list[str]:
    """Where the links of the open page lead."""
    script = "return [...document.querySelectorAll('a[href]')].map(x=>x.href)"
    return list(dict.fromkeys(browser.execute_script(script)))


def serious(browser: Any, *rules: str) -> list[tuple[str, str, str]]:
    """What axe-core finds on the open page that is serious or worse, by all rules or by some."""
    axe = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    script = next(Path(importlib.import_module(axe.__name__).__path__[0]).rglob("axe.min.js"))
    browser.execute_script(script.read_text(encoding="utf-8"))
    violations = browser.execute_async_script(
        "const [rules, done] = arguments;"
        " axe.run(rules.length ? {runOnly: rules} : {}).then((found) => done(found.violations))",
        list(rules),
    )
    return [
        (x["id"], x["nodes"][0]["html"][:150], x["nodes"][0].get("failureSummary", "")[:150])
        for x in violations
        if x["impact"] in {"serious", "critical"}
    ]
