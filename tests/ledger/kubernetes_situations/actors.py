"""All actions of scripts, on a lab with a real ledger and a real feed."""

import signal
import time
from typing import Any
from urllib.parse import quote

import httpx

from .kubelets import ControlPlane
from .scenario import Manifest, Part
from .stage import Stage

OURS = frozenset({"feed", "feed-2", "ledger"})


class FullCluster(ControlPlane):
    """A cluster with everything."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage.folder, name)
        self.stage = stage

    def find_jobs(self, name: str) -> list[dict[str, Any]]:
        """Records whose id has this name in it."""
        jobs = self.stage.jobs()
        # An id holds 200 characters: of a longer name it has the begin.
        return [job for job in jobs if name[:100] in job["job_id"]]

    def read_job(self, job_id: str) -> dict[str, Any]:
        """Everything that the ledger has of a job."""
        found: dict[str, Any] = self.stage.read(f"/api/jobs/{quote(job_id, safe='')}?cluster=east")
        return found

    def wait_recorded(self, name: str, *, is_open: bool = True) -> None:
        status = "running" if is_open else "finished"

        def is_so() -> bool:
            return any(job["status"] == status for job in self.find_jobs(name))

        self._until(is_so, f"the ledger has a job {name} that is {status}")

    def stop(self, part: Part) -> None:
        self._end(part, signal.SIGTERM)

    def kill(self, part: Part) -> None:
        self._end(part, signal.SIGKILL)

    def _end(self, part: Part, number: signal.Signals) -> None:
        if part in OURS:
            self.stage.programs[part].end(number)
        elif number == signal.SIGTERM:
            super().stop(part)
        else:
            super().kill(part)

    def start(self, part: Part) -> None:
        if part in OURS:
            self.stage.start(part)
        else:
            super().start(part)

    def _is_ours(self, part: Part) -> bool:  # noqa: ARG002  # every part is there
        return True

    def set_clock_offset(self, part: Part, seconds: float) -> None:
        self.stage.offsets[part] = seconds
        if self.stage.programs[part].process is not None:
            self.kill(part)
            self.start(part)

    def forbid(self, name: str) -> None:
        plural, _, group = name.partition(".")
        rules = [
            _without(rule, plural) if group in rule["apiGroups"] else rule
            for rule in self.stage.rules
        ]
        before, self.stage.before_rules = self.stage.rules, self.stage.rules  # type: ignore[attr-defined]  # for allow
        self.stage.grant([rule for rule in rules if rule["resources"]])
        del before
        time.sleep(0.5)

    def allow(self, name: str) -> None:
        del name
        self.stage.grant(self.stage.before_rules)  # type: ignore[attr-defined]  # of forbid

    def report_from_launcher(
        self, name: str, outcome: str, failure_class: str = "", cause: str = "", alias: str = ""
    ) -> None:
        now = time.time()
        end = {"outcome": outcome, "failure_class": failure_class or None, "cause": cause or None}
        fields: dict[str, Any] = {k: v for k, v in end.items() if v}
        start: dict[str, Any] = {"num_nodes": 1, "num_gpus": 1, "aliases": [alias] if alias else []}
        events = [
            {"id": f"{name}-{kind}", "kind": kind, "job_id": name, "attempt": 0, "time": moment,
             "fields": each}
            for kind, moment, each in (
                ("job_started", now - 1, start),
                ("attempt_started", now - 1, {"num_gpus": 1}),
                ("attempt_ended", now, fields),
                ("job_finished", now, fields),
            )
        ]  # fmt: skip
        body = {"version": 1, "cluster": "east", "node": f"{name}-node", "events": events}
        headers = {"Authorization": "Bearer launcher-token-of-tests"}
        answer = httpx.post(f"{self.stage.url}/api/events", json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    def rotate_token(self) -> None:
        self.stage.renew_token()
        self.stage.end_token(self.stage.before)

    def revoke_token(self) -> None:
        self.stage.end_token(self.stage.holder)

    def wait_until(self, is_so: Any, what: str) -> None:
        """Wait for a fact."""
        self._until(is_so, what)


def _without(rule: Manifest, plural: str) -> Manifest:
    return rule | {"resources": [each for each in rule["resources"] if each != plural]}
