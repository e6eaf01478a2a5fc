"""Summaries to MLflow: one run for each job, its verdict as tags and description.

TARGET is a tracking URI; MLFLOW_TRACKING_URI or ``sqlite:///lockstep-mlflow.db`` by default. The
experiment is MLFLOW_EXPERIMENT_NAME or ``lockstep``; MLFLOW_RUN_ID names a run of the user's own.
"""

import logging
import os
import time

from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from lockstep.sinks.summary import SinkError, Summary

_DEFAULT_URI = "sqlite:///lockstep-mlflow.db"
_FAILED_OUTCOMES = ("failed", "cancelled")


class MlflowSink:
    """Writes into one run: the user's where one is given, else a new one."""

    def __init__(self, job_id: str, uri: str, experiment: str, run_id: str | None) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs each table it creates
        self._is_own_run = run_id is None
        try:
            self._client = MlflowClient(uri)
            self._run_id = run_id or self._create_run(job_id, experiment)
        except MlflowException as error:
            raise SinkError(str(error)) from error

    def _create_run(self, job_id: str, experiment: str) -> str:
        existing = self._client.get_experiment_by_name(experiment)
        if existing is None:
            experiment_id = self._client.create_experiment(experiment)
        else:
            experiment_id = existing.experiment_id
        return str(self._client.create_run(experiment_id, run_name=job_id).info.run_id)

    def put(self, summary: Summary, *, last: bool) -> None:
        """Logs the numbers at their step and replaces the tags; the last one ends an own run."""
        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(f"lockstep/{name}", value, now_ms, summary.step)
            for name, value in summary.numbers.items()
        ]
        facts = {"job_id": summary.job_id, **summary.facts}
        tags = [RunTag(f"lockstep.{name}", text) for name, text in facts.items()]
        # The description of a run of the user's own stays the user's.
        if self._is_own_run:
            tags.append(RunTag("mlflow.note.content", "\n\n".join(summary.evidence)))
        try:
            self._client.log_batch(self._run_id, metrics=metrics, tags=tags)
            if last and self._is_own_run:
                failed = summary.facts.get("outcome") in _FAILED_OUTCOMES
                self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")
        except MlflowException as error:
            raise SinkError(str(error)) from error


def open_sink(job_id: str, target: str) -> MlflowSink:
    """A run for the job; SinkError where the tracking server or store does not answer."""
    return MlflowSink(
        job_id,
        target or os.environ.get("MLFLOW_TRACKING_URI") or _DEFAULT_URI,
        os.environ.get("MLFLOW_EXPERIMENT_NAME") or "lockstep",
        os.environ.get("MLFLOW_RUN_ID"),
    )
