"""Runs one ending by the trainer and collects what launcher, top, events, log and report say."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scenarios import Scenario

from lockstep_outcomes.joblogs.outcome import Incident, judge_log
from lockstep_outcomes.joblogs.read import read_log
from lockstep_records.events.event import read_events
from lockstep_reports.top.pages import PageSource

LOCKSTEP = (sys.executable, "-m", "lockstep_cli.main")
_MODEL = ("--layers", "2", "--width", "32", "--sequence", "32", "--eval-every", "0",
          "--eval-windows", "1", "--checkpoint-every", "0", "--log-every", "5")  # fmt: skip
_DEADLINE_SECONDS = 420.0
_POLL_SECONDS = 0.2
TOP_AFTER_SECONDS = (5, 60)


@dataclass(kw_only=True)
class Ended:
    """How a job ended.

    Attributes:
        fields: of its last event.
        incident: by the output alone.
        payload: JSON of the report on its pages.
        launcher_line: last line of the launcher.
        tops: states of the ranks by ``lockstep top``, by seconds after the fault.
        lost_seconds: from the last step that any rank completed to the end of the job.
    """

    fields: dict[str, Any]
    incident: Incident
    payload: dict[str, Any]
    launcher_line: str
    tops: dict[int, str] = field(default_factory=dict)
    lost_seconds: float | None = None

    @property
    def first_line(self) -> str:
        """Of the report."""
        return str(self.payload.get("headline", "no report"))


def run(scenario: Scenario, root: Path, ranks: int) -> Ended:
    """Runs a scenario as a job of its own under a root on a tmpfs.

    Raises:
        TimeoutError: it did not end.
    """
    output = root / f"{scenario.job_id}.log"
    command = [
        *LOCKSTEP, "train", "--nproc-per-node", str(ranks), "--job-id", scenario.job_id,
        "--dir", str(root), "--cluster", "bench", "--steps", str(scenario.steps), *_MODEL,
        *scenario.options,
        *(part for fault in scenario.faults for part in ("--fault", fault)),
    ]  # fmt: skip
    environment = dict(os.environ)
    environment.pop("LOCKSTEP_DIR", None)
    if scenario.has_time_limit:
        # Slurm's variable; the launcher is told to stop when it is due.
        environment["SLURM_JOB_ID"] = "7"
        environment["SLURM_JOB_END_TIME"] = str(int(time.time()) + scenario.limit_seconds)
    tops: dict[int, str] = {}
    with output.open("w") as out, subprocess.Popen(
        command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    ) as process:  # fmt: skip
        watch = threading.Thread(target=_watch_top, args=(scenario, process, root, output, tops))
        watch.start()
        try:
            _stop(scenario, process, output)
            process.wait(_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{scenario.name} did not end") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            watch.join()
    return _ended(root / "jobs" / scenario.job_id, output, tops)


def _watch_top(
    scenario: Scenario,
    process: "subprocess.Popen[bytes]",
    root: Path,
    output: Path,
    tops: dict[int, str],
) -> None:
    """Asks ``lockstep top`` some seconds after the fault; after an end once only."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while scenario.awaited not in _text(output) and process.poll() is None:
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)
    begin = time.monotonic()
    for seconds in TOP_AFTER_SECONDS:
        while time.monotonic() < begin + seconds:
            if seconds != TOP_AFTER_SECONDS[0] and process.poll() is not None:
                return
            time.sleep(_POLL_SECONDS)
        tops[seconds] = _top(root, scenario.job_id)


def _top(root: Path, job: str) -> str:
    """State of the job and of its ranks, by rank, as ``lockstep top`` shows them."""
    try:
        snapshot = PageSource(str(root / "jobs" / job)).poll()
    except ValueError as error:
        return str(error)
    rows = sorted(snapshot.rows, key=lambda row: row.rank)
    still = {"gone", "failed", "stopped", "stalled", "done"}
    has_rates = any(row.tokens_per_second and row.state in still for row in rows)
    states = ", ".join(row.state for row in rows)
    return f"{snapshot.state}: {states}{' WITH TOKENS' if has_rates else ''}"


def _text(output: Path) -> str:
    return output.read_text(errors="replace")


def _stop(scenario: Scenario, process: "subprocess.Popen[bytes]", output: Path) -> None:
    """Sends the scenario's signal to the launcher when its time has come."""
    if scenario.stop is None:
        return
    deadline = time.monotonic() + _DEADLINE_SECONDS
    awaited = f"step {scenario.steps}" if scenario.stops_after_training else "loss"
    while process.poll() is None and time.monotonic() < deadline:
        if awaited in _text(output):
            break
        time.sleep(_POLL_SECONDS)
    time.sleep(scenario.stop_after)
    if scenario.has_time_limit:
        _wait_for_limit(process)
    if process.poll() is None:
        process.send_signal(scenario.stop)


def _wait_for_limit(process: "subprocess.Popen[bytes]") -> None:
    environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    prefix = b"SLURM_JOB_END_TIME="
    limit = next(int(e[len(prefix) :]) for e in environment if e.startswith(prefix))
    time.sleep(max(0.0, limit - time.time()))


def _ended(job: Path, output: Path, tops: dict[int, str]) -> Ended:
    events = read_events(job)
    fields = next((e.fields for e in reversed(events) if e.kind == "job_finished"), {})
    report = [*LOCKSTEP, "report", str(job), "--json", "-"]
    done = subprocess.run(report, capture_output=True, text=True, check=False)
    payload: dict[str, Any] = {"headline": done.stderr.strip()}
    if done.returncode == 0:
        payload = json.loads(done.stdout)
    own = [line for line in _text(output).splitlines() if line.startswith("lockstep: ")]
    return Ended(
        fields=fields,
        incident=judge_log(read_log(output)),
        payload=payload,
        launcher_line=own[-1].removeprefix("lockstep: ") if own else "",
        tops=tops,
        lost_seconds=payload.get("seconds_after_last_progress"),
    )
