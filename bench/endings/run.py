"""Runs one ending by the trainer and collects what the events, the log and the report say of it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios import Scenario

from lockstep_records.events import read_events
from lockstep_records.joblogs.outcome import Incident, judge_log
from lockstep_records.joblogs.read import read_log

_MODEL = ("--layers", "2", "--width", "32", "--sequence", "32", "--eval-every", "0",
          "--eval-windows", "1", "--checkpoint-every", "0", "--log-every", "5")  # fmt: skip
_DEADLINE_SECONDS = 300.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        fields: of its last event.
        incident: by the output alone.
        first_line: of the report on its pages.
        lost_seconds: from the last step that any rank completed to the end of the job.
    """

    fields: dict[str, Any]
    incident: Incident
    first_line: str
    lost_seconds: float | None


def run(scenario: Scenario, folder: Path, ranks: int) -> Ended:
    """Runs a scenario in a folder of its own, on a tmpfs.

    Raises:
        TimeoutError: it did not end.
    """
    folder.mkdir(parents=True)
    job, output = "ending", folder / "output.log"
    command = [
        sys.executable, "-m", "lockstep_cli.main", "train", "--nproc-per-node", str(ranks),
        "--job-id", job, "--dir", str(folder), "--steps", str(scenario.steps), *_MODEL,
        *scenario.options,
        *(part for fault in scenario.faults for part in ("--fault", fault)),
    ]  # fmt: skip
    environment = dict(os.environ)
    environment.pop("LOCKSTEP_DIR", None)
    if scenario.has_time_limit:
        # Slurm's variable; the launcher is told to stop when it is due.
        environment["SLURM_JOB_ID"] = "7"
        environment["SLURM_JOB_END_TIME"] = str(int(time.time()) + 20)
    with output.open("w") as out, subprocess.Popen(
        command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    ) as process:  # fmt: skip
        try:
            _stop(scenario, process, output)
            process.wait(_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{scenario.name} did not end") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return _ended(folder / "jobs" / job, output)


def _stop(scenario: Scenario, process: "subprocess.Popen[bytes]", output: Path) -> None:
    """Sends the scenario's signal to the launcher when its time has come."""
    if scenario.stop is None:
        return
    deadline = time.monotonic() + _DEADLINE_SECONDS
    awaited = f"step {scenario.steps}" if scenario.stops_after_training else "loss"
    while process.poll() is None and time.monotonic() < deadline:
        if awaited in output.read_text(errors="replace"):
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


def _ended(job: Path, output: Path) -> Ended:
    events = read_events(job)
    fields = next(e.fields for e in reversed(events) if e.kind == "job_finished")
    report = [sys.executable, "-m", "lockstep_cli.main", "report", str(job)]
    formats = [
        subprocess.run([*report, name, "-"], capture_output=True, text=True, check=False)
        for name in ("--json", "--markdown")
    ]
    payload = json.loads(formats[0].stdout) if formats[0].returncode == 0 else {}
    lines = formats[1].stdout.splitlines() or [formats[1].stderr.strip()]
    return Ended(
        fields=fields,
        incident=judge_log(read_log(output)),
        first_line=lines[0].lstrip("# "),
        lost_seconds=payload.get("seconds_after_last_progress"),
    )
