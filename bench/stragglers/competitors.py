"""The same trials judged by three tools at once: Lockstep, TraceML and NVRx in one loop."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plan import HEALTHY, NVRX_FILE, ORIGINS, SCHEDULE, WARM_UP, Course, Trial
from runs import HERE, Launch, root_folder, train
from verdicts import PHASES, judge_trials

_TRACEML = ("-m", "traceml_ai.launcher.cli", "run", "--mode", "summary")
_STEPS = 100  # all of a trial's: TraceML judges its whole run, the healthy steps before as well
_PERCENTS = {"ddp": (250, 35), "fsdp2": (60,), "pipeline": (60,)}
_INPUT = "INPUT_STRAGGLER"
_TIMEOUT_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class CompetitorResult:
    """The answers of three tools to one trial.

    Attributes:
        strategy: how the ranks trained.
        trial: who was slow, where.
        answer: whom it names, by tool.
        right: whether that is correct, by tool; for a healthy trial, that nobody is named.
    """

    strategy: str
    trial: Trial
    answer: dict[str, str]
    right: dict[str, bool]


def competitor_trials(strategy: str) -> Iterator[Trial]:
    """Steady ones of each origin, and as many as there are sizes in which nobody is slow."""
    start = WARM_UP + HEALTHY
    for number, origin in enumerate(ORIGINS):
        for percent in _PERCENTS[strategy]:
            yield Trial(origin, percent, "steady", 1 + number % 3, start, _STEPS)
    for rank in range(len(_PERCENTS[strategy])):
        yield Trial("loader", 0, "none", rank, start, _STEPS)


def run_competitors(
    strategy: str, trial: Trial, folder: Path, script: str = "loop.py", **course_options: Any
) -> CompetitorResult:
    """Trains through one trial with all three tools in the loop.

    Args:
        strategy: how.
        trial: one of ``competitor_trials``.
        folder: where the other tools are installed.
        script: the loop.
        course_options: further fields of the course.
    """
    with root_folder() as root:
        steps = trial.start + trial.steps
        course = Course((trial,), steps, competitors=True, **course_options)
        launcher = (*_TRACEML, "--logs-dir", str(root), "--run-name", "traceml")
        launch = Launch(
            launcher=(*launcher, "--aggregator-port", str(_free_port())),
            separators=("--args",),
            path=f"{HERE}:{HERE.parent}:{folder}",
            timeout_seconds=_TIMEOUT_SECONDS,
            script=script,
        )
        attempt = train(strategy, root, course, launch)
        lockstep = judge_trials(attempt, [trial], strategy)[0]
        nvrx = json.loads((root / NVRX_FILE).read_text(encoding="utf-8"))
        summary = json.loads((root / "traceml" / "final_summary.json").read_text(encoding="utf-8"))
    within = f" in {lockstep.num_steps} steps" if lockstep.num_steps and trial.percent else ""
    traceml = _traceml(summary["step_time"]["diagnosis"], trial)
    nvrx_right = nvrx == _expected(trial, strategy)
    return CompetitorResult(
        strategy,
        trial,
        {"Lockstep": lockstep.answer + within, "NVRx": _nvrx_words(nvrx), "TraceML": traceml[0]},
        {"Lockstep": lockstep.right, "NVRx": nvrx_right, "TraceML": traceml[1]},
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _expected(trial: Trial, strategy: str) -> dict[str, list[int]]:
    """The rank in its section, and no other rank or section."""
    if _nobody(trial):
        return {}
    mixed = strategy == "pipeline" and trial.origin in {"forward", "backward"}
    return {SCHEDULE if mixed else PHASES[trial.origin]: [trial.rank]}


def _nobody(trial: Trial) -> bool:
    return trial.pattern == "none" or trial.origin == "collective"


def _nvrx_words(named: dict[str, list[int]]) -> str:
    sections = (f"{name}: {' '.join(str(rank) for rank in ranks)}" for name, ranks in named.items())
    return "; ".join(sections) or "nobody"


def _traceml(diagnosis: dict[str, Any], trial: Trial) -> tuple[str, bool]:
    """What its summary says of the steps' times, and whether that is so."""
    ranks = list(diagnosis.get("ranks") or []) if "STRAGGLER" in diagnosis["kind"] else []
    phase = str(diagnosis.get("phase") or "")
    answer = f"{' '.join(str(rank) for rank in ranks) or 'nobody'}: {diagnosis['status']} {phase}"
    if _nobody(trial):
        return answer.strip(), not ranks
    is_phase = diagnosis["kind"] == _INPUT if trial.origin == "loader" else phase == trial.origin
    return answer.strip(), ranks == [trial.rank] and is_phase
