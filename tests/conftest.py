"""Skips what needs a missing program, starts the longest files first, serves Prometheus."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

# What several components' tests share, the simulated cluster, and the writers of documents.
_ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT / folder) for folder in ("tests", "bench", "docs")]
pytest_plugins = ("servers",)

PROGRAMS = {"server": ("prometheus", "amtool"), "promtool": ("promtool", "amtool")}
# Seconds by file of tests, as `make durations` records them; those under a second are left out.
DURATIONS = Path(__file__).parent / "durations.json"
QUICK_SECONDS = 2.0  # of a file of tests that `make test-quick` runs
# In CI everything that tests need is installed: a test that is skipped there is one of these.
SKIPS_ALLOWED_IN_CI = (
    "needs a GPU",  # CI has none
    "root may write everywhere",  # CI is root
    "torch itself does not save what it has compiled",  # a property of torch, not of the machine
    # Frameworks that are in no extra: each brings hundreds of megabytes or a build of its own.
    *(
        f"{name} is not installed"
        for name in ("deepspeed", "megatron", "ray", "torchft", "torchtitan")
    ),
)
START_ATTEMPTS = 3

# httpx waits five seconds; a server next to two torch jobs on two cores needs longer at times.
DEFAULT_TIMEOUT_CONFIG.connect = DEFAULT_TIMEOUT_CONFIG.read = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = f"leave out files whose tests take over {QUICK_SECONDS:g} s, by durations.json"
    parser.addoption("--quick", action="store_true", help=help_text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = {
        marker: [name for name in names if shutil.which(name) is None]
        for marker, names in PROGRAMS.items()
    }
    for item in items:
        for marker, names in missing.items():
            if names and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"not on PATH: {', '.join(names)}"))
    # Several workers end at about the same time when what is left at the end is short. Files that
    # wait for servers, as a third of all seconds are, go between others, so that cores have work.
    seconds = json.loads(DURATIONS.read_text(encoding="utf-8"))

    def seconds_of(item: pytest.Item) -> float:
        return float(seconds.get(item.nodeid.partition("::")[0], 0.0))

    waiting = {item.path for item in items if "server" in item.keywords}
    files = sorted({item.path: item for item in items}.values(), key=lambda item: -seconds_of(item))
    places: dict[Path, float] = {}
    for waits, step in ((True, 3.0), (False, 1.5)):
        of_kind = [item.path for item in files if (item.path in waiting) is waits]
        places |= {path: step * number for number, path in enumerate(of_kind)}
    items.sort(key=lambda item: places[item.path])
    if config.getoption("--quick"):
        items[:] = [item for item in items if seconds_of(item) <= QUICK_SECONDS]


def record_durations(terminalreporter: pytest.TerminalReporter, path: Path) -> None:
    """Writes the seconds of each file that took one, the longest first; files not run stay."""
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                seconds[file] = seconds.get(file, 0.0) + report.duration
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    table = {file: round(value, 1) for file, value in (old | seconds).items() if value >= 1}
    longest_first = dict(sorted(table.items(), key=lambda entry: -entry[1]))
    path.write_text(json.dumps(longest_first, indent=0) + "\n", encoding="utf-8")


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """In CI, names the tests that were skipped without an allowed reason, and fails the run."""
    yield
    if path := os.environ.get("LOCKSTEP_DURATIONS"):
        record_durations(terminalreporter, Path(path))
    reports = terminalreporter.getreports("skipped") if os.environ.get("CI") else []
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in SKIPS_ALLOWED_IN_CI):
            terminalreporter.write_line(f"skipped in CI: {report.nodeid}: {reason}", red=True)
            assert terminalreporter._session is not None
            terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def serve_prometheus() -> Callable[[Path], AbstractContextManager[str]]:
    """Starts Prometheus with a configuration file; yields its address once it answers queries."""
    return _serve_prometheus


@contextmanager
def _serve_prometheus(config: Path) -> Iterator[str]:
    from servers import free_port, running  # noqa: PLC0415  # on the path since this file was read

    log = config.with_suffix(".log")
    for attempts_left in reversed(range(START_ATTEMPTS)):
        url = f"http://127.0.0.1:{free_port()}"
        command = [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={config.parent}/data",
            f"--web.listen-address={url[7:]}", "--web.enable-remote-write-receiver",
        ]  # fmt: skip
        with running(command, log, f"{url}/-/ready") as is_ready:
            if is_ready:
                yield url
                return
        # Another process may bind the port between its choice and the start of the server.
        text = log.read_text(errors="replace")
        assert "address already in use" in text, text
        assert attempts_left, text
    raise AssertionError("the last attempt yields or raises")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium that opens pages; see ``page_checks``."""
    from page_checks import chromium  # noqa: PLC0415  # on the path since this file was read

    with chromium() as driver:
        yield driver


@contextmanager
def _folder_in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="lockstep-test-", dir="/dev/shm", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@pytest.fixture
def memory() -> Iterator[Path]:
    """An empty folder on the tmpfs that rank pages need."""
    with _folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="module")
def module_memory() -> Iterator[Path]:
    with _folder_in_memory() as folder:
        yield folder
