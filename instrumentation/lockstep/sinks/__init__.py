"""Summaries of a job to MLflow, W&B and TensorBoard, written by a child of the launcher."""

from importlib.util import find_spec
from pathlib import Path

from lockstep.sidecar import Child
from lockstep_records.distribution import install_hint

SINKS = ("mlflow", "tensorboard", "wandb")
_TIMEOUT_SECONDS = 60.0


def sinks_of(summary_to: tuple[str, ...], job: Path) -> tuple[Child, ...]:
    """The children that write a job's summaries to each SINK or SINK:TARGET; or ValueError."""
    children = []
    for destination in summary_to:
        sink, _, target = destination.partition(":")
        if sink not in SINKS:
            raise ValueError(f"--summary-to {destination!r} is none of {', '.join(SINKS)}")
        if find_spec(sink) is None:
            raise ValueError(f"--summary-to {destination} needs {sink}; {install_hint(sink)}")
        arguments = ("-m", "lockstep.sinks.summary", sink, target, str(job))
        children.append(
            Child(
                name=f"the summary to {sink}", arguments=arguments, timeout_seconds=_TIMEOUT_SECONDS
            )
        )
    return tuple(children)
