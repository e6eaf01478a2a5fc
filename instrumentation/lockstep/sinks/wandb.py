"""Summaries to Weights & Biases: one run for each job, offline unless WANDB_MODE is set.

TARGET is the folder that holds ``wandb/``, the working folder by default. The project is
WANDB_PROJECT or ``lockstep``; ``wandb sync`` uploads an offline run.
"""

import os

import wandb

from lockstep.sinks.summary import SinkError, Summary


class WandbSink:
    """Writes into one new run."""

    def __init__(self, job_id: str, folder: str) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_SILENT", "true")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "lockstep",
                dir=folder,
                name=job_id,
                config={"job_id": job_id},
                # CPU, memory and console of this child say nothing about the job.
                settings=wandb.Settings(x_disable_stats=True, console="off"),
            )
        except wandb.Error as error:
            raise SinkError(str(error)) from error

    def put(self, summary: Summary, *, last: bool) -> None:
        """Logs the numbers at their step; verdict and evidence go into the run's summary."""
        try:
            numbers = {f"lockstep/{name}": value for name, value in summary.numbers.items()}
            self._run.log(numbers, step=summary.step)
            for name, text in summary.facts.items():
                self._run.summary[f"lockstep/{name}"] = text
            self._run.summary["lockstep/evidence"] = "\n".join(summary.evidence)
            if last:
                self._run.finish(exit_code=int(summary.facts.get("outcome") == "failed"))
        except wandb.Error as error:
            raise SinkError(str(error)) from error


def open_sink(job_id: str, target: str) -> WandbSink:
    """A run for the job; SinkError where it cannot be created."""
    return WandbSink(job_id, target or ".")
