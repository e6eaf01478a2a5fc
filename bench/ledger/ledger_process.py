"""``lockstep ledger serve`` as a process that can be killed and started again on its port."""

import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LedgerProcess:
    """A ledger over a store; after the first start it stays on its port."""

    store: str
    options: tuple[str, ...] = ()
    port: int = 0
    lines: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None

    def start(self) -> "LedgerProcess":
        """Starts it and waits until it serves."""
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
            raise SystemExit("".join(self.lines))
        # A pipe that nobody reads would block the ledger.
        threading.Thread(target=self._drain, args=(self.process.stderr,), daemon=True).start()
        return self

    def _drain(self, stream: Any) -> None:
        for line in stream:
            if "status=200" not in line:
                self.lines.append(line)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends it by SIGTERM."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(30)
