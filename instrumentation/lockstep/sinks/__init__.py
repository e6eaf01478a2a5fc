"""Where summaries of a job go when asked: MLflow, W&B and TensorBoard, written from beside it."""

from importlib.util import find_spec
from pathlib import Path

from lockstep.sidecar import Child
from lockstep_records.distribution import install_hint

SINKS = ("mlflow", "tensorboard", "wandb")
_PATIENCE_SECONDS = 60.0


def sinks_of(summary_to: tuple[str, ...], job: Path) -> tuple[Child, ...]:
    """The children that write a job's summaries.

    Args:
        summary_to: each SINK or SINK:TARGET; what a target is, the sink's module says.
        job: folder of the job.

    Raises:
        ValueError: a sink is not known, or its library is not installed.
    """
    children = []
    for told in summary_to:
        sink, _, target = told.partition(":")
        if sink not in SINKS:
            raise ValueError(f"--summary-to {told!r} is none of {', '.join(SINKS)}")
        if find_spec(sink) is None:
            raise ValueError(f"--summary-to {told} needs {sink}; {install_hint(sink)}")
        arguments = ("-m", "lockstep.sinks.program", sink, target, str(job))
        children.append(
            Child(
                name=f"the summary to {sink}",
                arguments=arguments,
                patience_seconds=_PATIENCE_SECONDS,
            )
        )
    return tuple(children)
