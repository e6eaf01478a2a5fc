"""Summaries to MLflow: one run a job, its verdict as tags and description.

TARGET is a tracking URI; MLFLOW_TRACKING_URI or ``sqlite:///lockstep-mlflow.db`` when left out. The
experiment is MLFLOW_EXPERIMENT_NAME or ``lockstep``; with MLFLOW_RUN_ID that run is written to.
"""

import logging
import os
import time

from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from lockstep.sinks.summary import SinkError, Summary

_HERE = "sqlite:///lockstep-mlflow.db"
_BAD_ENDS = ("failed", "cancelled")


class MlflowSink:
    """Writes into one run, made at once."""

    def __init__(self, job_id: str, uri: str, experiment: str, run_id: str | None) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of every table it makes
        self._ours = run_id is None
        try:
            self._client = MlflowClient(uri)
            self._run_id = run_id or self._made(job_id, experiment)
        except MlflowException as error:
            raise SinkError(str(error)) from error

    def _made(self, job_id: str, experiment: str) -> str:
        known = self._client.get_experiment_by_name(experiment)
        experiment_id = known.experiment_id if known else self._client.create_experiment(experiment)
        return str(self._client.create_run(experiment_id, run_name=job_id).info.run_id)

    def put(self, summary: Summary, *, last: bool) -> None:
        """Logs the numbers at their step and replaces the tags; the last ends a run of ours."""
        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(f"lockstep/{name}", value, now_ms, summary.step)
            for name, value in summary.numbers.items()
        ]
        facts = {"job_id": summary.job_id, **summary.facts}
        tags = [RunTag(f"lockstep.{name}", text) for name, text in facts.items()]
        if self._ours:
            tags.append(RunTag("mlflow.note.content", "\n\n".join(summary.evidence)))
        try:
            self._client.log_batch(self._run_id, metrics=metrics, tags=tags)
            if last and self._ours:
                failed = summary.facts.get("outcome") in _BAD_ENDS
                self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")
        except MlflowException as error:
            raise SinkError(str(error)) from error


def open_sink(job_id: str, target: str) -> MlflowSink:
    """A run for the job.

    Raises:
        SinkError: the tracking server or store cannot be had.
    """
    return MlflowSink(
        job_id,
        target or os.environ.get("MLFLOW_TRACKING_URI") or _HERE,
        os.environ.get("MLFLOW_EXPERIMENT_NAME") or "lockstep",
        os.environ.get("MLFLOW_RUN_ID"),
    )
