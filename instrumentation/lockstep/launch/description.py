"""Description of a job, for its events: who, class, queue, nodes, deadline, price, and its end."""

import getpass
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lockstep.identity.scheduler import alias_of, job_class_of, pod_alias_of, project_of, queue_of
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import evidence_of

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_MODEL = "Model:"
# How near to the end of an allocation Slurm's SIGTERM for the time limit comes: KillWait is 30 s.
_TIME_LIMIT_SLACK_SECONDS = 90.0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDescription:
    """Fields of ``job_started`` that only describe; None or empty where unknown."""

    name: str = ""
    user: str = ""
    job_class: str = ""
    queue: str = ""
    gpu_model: str = ""
    deadline_time: float | None = None
    declared_tokens: int | None = None
    price_per_gpu_hour: float | None = None
    currency: str = ""

    def event_fields(
        self, *, environment: Mapping[str, str] = os.environ, gpus: Path = _NVIDIA
    ) -> dict[str, Any]:
        """The description with what scheduler and driver know; what is unknown is absent."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        found = {
            "user": environment.get("SLURM_JOB_USER") or _login(),
            "queue": queue_of(environment),
            "job_class": job_class_of(environment),
            "project": project_of(environment),
            "name": environment.get("SLURM_JOB_NAME"),
            "gpu_model": gpu_model(gpus),
            "time_limit_seconds": time_limit_seconds(environment),
            "aliases": [*filter(None, (alias_of(environment), pod_alias_of(environment)))] or None,
        }
        described = (*found.items(), *given.items())
        return {name: value for name, value in described if value is not None and value != ""}


def gpu_model(gpus: Path = _NVIDIA) -> str | None:
    """Model of the first GPU, as the driver names it; None without a driver."""
    for information in sorted(gpus.glob("*/information")):
        try:
            lines = information.read_text(errors="replace").splitlines()
        except OSError:
            continue
        models = (line.removeprefix(_MODEL).strip() for line in lines if line.startswith(_MODEL))
        return next(models, None)
    return None


def num_gpus_of_node(environment: Mapping[str, str] = os.environ, gpus: Path = _NVIDIA) -> int:
    """GPUs of this node that the job may use: those Slurm granted, those visible, else all."""
    granted = environment.get("SLURM_GPUS_ON_NODE", "")
    if granted.isdigit():
        return int(granted)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in {"", "-1"}])
    return len(list(gpus.glob("*/information")))


def time_limit_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """Wall clock that Slurm allows the job; None where it does not say."""
    start, end = (_seconds(environment, f"SLURM_JOB_{name}_TIME") for name in ("START", "END"))
    return None if start is None or end is None or end <= start else end - start


def is_at_time_limit(now_seconds: float, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether Slurm's time limit ends the job about now."""
    end = _seconds(environment, "SLURM_JOB_END_TIME")
    return end is not None and now_seconds >= end - _TIME_LIMIT_SLACK_SECONDS


def _seconds(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "")
    return float(text) if text.isdigit() else None


def _login() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no name for its user
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersEnd:
    """How the workers of the last attempt ended.

    Attributes:
        exit_codes: one per worker; negative for a signal.
        stop_time: when it began to stop its workers, seconds since 1970.
    """

    attempt: int
    exit_codes: tuple[int, ...]
    signal_number: int | None = None
    stop_time: float | None = None


def judge_end(job: Path, end: WorkersEnd) -> dict[str, Any]:
    """Outcome, class, cause, reason and ranks of an attempt, as fields of its last events."""
    is_stopped = end.signal_number is not None
    evidence = evidence_of(
        job,
        end.attempt,
        launcher_signal=signal.Signals(end.signal_number).name if end.signal_number else None,
        at_time_limit=is_stopped and end.stop_time is not None and is_at_time_limit(end.stop_time),
        outside_time=end.stop_time if is_stopped else None,
    )
    return classify(evidence).event_fields()
