"""A ledger that serves: in this process for the answers, in one of its own for its life."""

import importlib.util
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from lockstep_catalogue import Metric
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.windows import WindowReader
from lockstep_ledger.store.writer import SharedWriter, StoreWriter
from lockstep_ledger.web.app import Application, Limits, Parts
from lockstep_ledger.web.intake import GroupCommit, Tokens
from lockstep_outcomes.prices.price import Pricing

JSON = {"Content-Type": "application/json"}
LIVE_CHECK = Path(__file__).parent.parent / "agent" / "livecheck.py"


def complaints(scrape: str, declared: Iterable[Metric]) -> list[str]:
    """The agent's live check, from the package of its tests, of which this is no part."""
    spec = importlib.util.spec_from_file_location("livecheck", LIVE_CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[str] = module.complaints(scrape, declared)
    return found


@contextmanager
def application(
    store: str,
    writers: Tokens | None = None,
    readers: Tokens | None = None,
    clusters: frozenset[str] = frozenset({"east"}),
    *,
    pricing: Pricing | None = None,
    **limits: Any,
) -> Iterator[tuple[TestClient, Parts, Application]]:
    """The application over a store, without a socket."""
    engine = open_store(store)
    groups = [("east", "", "", "")]
    pricing = pricing or Pricing()
    writer = SharedWriter(
        engine, lambda own: StoreWriter(own, None, groups, clusters=clusters, pricing=pricing)
    )
    windows = WindowReader(engine, clusters=clusters)
    commits = GroupCommit(writer)
    parts = Parts(engine, writer, commits, windows, clusters, pricing)
    writer.start()
    parts.group_commit.start()
    parts.windows.refresh()
    nobody = Tokens({})
    app = Application(parts, writers or nobody, readers or nobody, Limits(**limits))
    try:
        with TestClient(app.asgi, "http://localhost", headers=JSON) as client:
            yield client, parts, app
    finally:
        parts.group_commit.stop()
        writer.stop()
        engine.dispose()


@dataclass
class LedgerProcess:
    """``lockstep ledger serve`` on a store; it can be killed and started again on its port."""

    store: str
    options: tuple[str, ...] = ()
    port: int = 0
    lines: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    reader: threading.Thread | None = None

    def start(self) -> "LedgerProcess":
        command = [sys.executable, "-m", "lockstep_cli.main", "ledger", "serve"]
        address = ["--store", self.store, "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(
            [*command, *address, *self.options], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if match := re.search(r"^serving https?://127.0.0.1:(\d+)/", line):
                self.port = int(match[1])
                break
        else:
            self.process.stderr.close()
            self.process.wait()
            raise AssertionError("".join(self.lines))
        # A pipe that nobody reads would block the ledger.
        self.reader = threading.Thread(target=self._drain, args=(self.process.stderr,), daemon=True)
        self.reader.start()
        return self

    def _drain(self, stream: Any) -> None:
        with stream:
            for line in stream:
                if "status=200" not in line:
                    self.lines.append(line)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._close()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(30)
        self._close()
        return status

    def _close(self) -> None:
        if self.reader is not None:
            self.reader.join()


@contextmanager
def ledger_process(store: str | Path, *options: str) -> Iterator[LedgerProcess]:
    running = LedgerProcess(str(store), options).start()
    try:
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.kill()
