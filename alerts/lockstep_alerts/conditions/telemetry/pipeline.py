"""Two alerts that notify nobody: they prove and protect the way from a rule to a person."""

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.synthetic import JOB, Samples, Timing, samples
from lockstep_catalogue import foreign
from lockstep_catalogue.labels import CLUSTER, JOB_ID
from lockstep_catalogue.promql import by, eq, names, one_of, select
from lockstep_catalogue.windows import ScrapeWindows


class AlwaysFiring(Condition):
    """The dead man's switch: it fires always, and its silence says that the pipeline is broken."""

    def expression(self, windows: ScrapeWindows) -> str:
        """One, without labels."""
        return "vector(1)"

    def cases(self, timing: Timing) -> list[Case]:
        return [
            Case("nothing is scraped", [], {}),
            Case("Prometheus has just started", [], at_seconds=0),
        ]


class InfoAlone(Condition):
    """An alert of severity info fires, and none of a graver one for the same job."""

    def expression(self, windows: ScrapeWindows) -> str:
        """The jobs with such an alert; without a job the cluster."""
        firing = eq(foreign.ALERT_STATE, "firing")
        info = select(foreign.ALERTS, firing, eq(foreign.ALERT_SEVERITY, "info"))
        graver = one_of(foreign.ALERT_SEVERITY, "critical", "warning")
        of_same_job = f"on ({names(CLUSTER, JOB_ID)}) {select(foreign.ALERTS, firing, graver)}"
        return by("group", f"{info} unless {of_same_job}", CLUSTER, JOB_ID)

    def cases(self, timing: Timing) -> list[Case]:
        info = _alert(timing, "info", "j1")
        return [
            Case("it is alone", [info], JOB),
            Case("another job has a ticket", [info, _alert(timing, "warning", "j2")], JOB),
            Case("its job has a ticket", [info, _alert(timing, "warning", "j1")]),
        ]


def _alert(timing: Timing, severity: str, job_id: str) -> Samples:
    labels = {"alertname": f"A{severity}", "alertstate": "firing", "severity": severity}
    return samples(foreign.ALERTS, timing.steps_up(1, 1), **{**JOB, "job_id": job_id}, **labels)
