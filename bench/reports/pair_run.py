"""Short runs that Lockstep and TraceML record at once, and whom each names."""

import json
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from processes import Process, environment, run_lockstep

_SCRIPT = Path(__file__).with_name("competitor_run.py")
_TIMEOUT_SECONDS = 600
_RUN_NAME = "both"
SLOW_RANK = 2
ORIGINS = ("nowhere", "data", "forward", "backward")


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRun:
    """One run of four ranks, and both verdicts on it.

    Attributes:
        origin: phase in which rank 2 was slowed down, or ``nowhere``.
        ours: Lockstep's process.
        traceml: TraceML's verdict in words.
    """

    origin: str
    ours: Process
    traceml: str

    @property
    def truth(self) -> str:
        """Who was made slow, and where."""
        return "nobody" if self.origin == "nowhere" else f"rank {SLOW_RANK} {self.origin}"


def run_pair(origin: str, peers: Path) -> PairRun:
    """Trains with both recorders, then asks both.

    Raises:
        RuntimeError: the run failed.
    """
    # Rank pages need tmpfs. A folder of its own: what an interrupted run left is never met again.
    with tempfile.TemporaryDirectory(
        prefix="lockstep-bench-", dir="/dev/shm", ignore_cleanup_errors=True
    ) as folder:
        root = Path(folder)
        logs = root / "traceml"
        command = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", "--run-name", _RUN_NAME]
        command += ["--logs-dir", str(logs)]
        command += ["--aggregator-port", _free_port(), "--master-port", _free_port()]
        run = subprocess.run(
            [*command, "--nproc-per-node", "4", str(_SCRIPT)],
            env={**environment(peers), "BENCH_ORIGIN": origin, "BENCH_ROOT": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        summary_path = logs / _RUN_NAME / "final_summary.json"
        if run.returncode or not summary_path.exists():
            raise RuntimeError(f"the run slow in {origin} failed:\n{run.stdout[-1500:]}")
        summary = json.loads(summary_path.read_text(encoding="utf-8"))
        verdict = _verdict_in_words(summary["step_time"]["diagnosis"])
        ours = run_lockstep(root / "jobs" / _RUN_NAME)
        return PairRun(origin=origin, ours=ours, traceml=verdict)


def _verdict_in_words(diagnosis: dict[str, object]) -> str:
    """TraceML's diagnosis of the step times; only its kinds of stragglers name a rank."""
    ranks = diagnosis.get("ranks")
    if not isinstance(ranks, list) or "STRAGGLER" not in str(diagnosis["kind"]):
        return f"{diagnosis['status']}, nobody named"
    return f"{diagnosis['status']}, rank {', '.join(map(str, ranks))}"


def _free_port() -> str:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
