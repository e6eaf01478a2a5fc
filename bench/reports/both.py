"""Short runs that Lockstep and TraceML record at once, and whom each names."""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from processes import Ended, environment, lockstep

_SCRIPT = Path(__file__).with_name("side_run.py")
_SECONDS = 600
SLOW_RANK = 2
ORIGINS = ("nowhere", "data", "forward", "backward")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of four ranks, and what was said of it."""

    origin: str
    ours: Ended
    traceml: str

    @property
    def truth(self) -> str:
        """Who was made slow, and where."""
        return "nobody" if self.origin == "nowhere" else f"rank {SLOW_RANK} {self.origin}"


def run(origin: str, peers: Path) -> Run:
    """Trains with both on board, then asks both.

    Raises:
        RuntimeError: the run ended badly.
    """
    root = Path(tempfile.mkdtemp(prefix="lockstep-bench-both-", dir="/dev/shm"))
    try:
        logs = root / "traceml"
        command = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", "--run-name", "both"]
        command += ["--logs-dir", str(logs), "--aggregator-port", _free(), "--master-port", _free()]
        ended = subprocess.run(
            [*command, "--nproc-per-node", "4", str(_SCRIPT)],
            env={**environment(peers), "BENCH_ORIGIN": origin, "BENCH_ROOT": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        summary = logs / "both" / "final_summary.json"
        if ended.returncode or not summary.exists():
            raise RuntimeError(f"the run slow in {origin} ended badly:\n{ended.stdout[-1500:]}")
        told = json.loads(summary.read_text(encoding="utf-8"))
        ours = lockstep(root / "jobs" / "both")
        return Run(origin=origin, ours=ours, traceml=_words(told["step_time"]["diagnosis"]))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _words(diagnosis: dict[str, object]) -> str:
    """TraceML's diagnosis of the step times; only its kinds of stragglers accuse a rank."""
    ranks = diagnosis.get("ranks")
    if not isinstance(ranks, list) or "STRAGGLER" not in str(diagnosis["kind"]):
        return f"{diagnosis['status']}, nobody named"
    return f"{diagnosis['status']}, rank {', '.join(map(str, ranks))}"


def _free() -> str:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
