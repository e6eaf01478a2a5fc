"""Turns symptoms into Prometheus rules: one function a kind, built over catalogue objects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep_alerts.model import (
    Delivery,
    Limits,
    NotFiniteLimits,
    StalledLimits,
    StragglerLimits,
    Symptom,
)
from lockstep_catalogue import recorded, training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, PHASE, RANK, STATE
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import by, eq, increase, names, one_of, select
from lockstep_catalogue.vocabulary import PAUSE_PHASES

RECORDING_GROUP = "lockstep-train.rules"
ALERT_GROUP = "lockstep-train"

_JOB = (CLUSTER, JOB_ID)
_RANK = (*_JOB, RANK)
_ON_JOB = f"on ({names(*_JOB)})"
_ON_RANK = f"on ({names(*_RANK)})"
_LE = Label(name="le", help="upper bound of a bucket")
_NAMED_RANKS = 16  # a page is read on a telephone


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """When a symptom is there, and what its description can say beyond the labels.

    Attributes:
        expression: PromQL.
        evidence: a Prometheus template, or nothing.
    """

    expression: str
    evidence: str = ""


def _num_ranks(*states: str) -> str:
    return by("sum", select(training.RANKS, one_of(STATE, *states)), *_JOB)


def _training() -> str:
    return f"{_ON_JOB} ({_num_ranks('training')} > 0)"


def _where(labels: tuple[Label, ...], newest: str) -> str:
    """One series a rank, value 1, whatever ties there are: for a join that cannot break."""
    return by("group", f"topk by ({names(*_RANK)}) (1, {newest})", *labels)


def _phase_of_rank() -> str:
    # The mean over a minute, for a phase that flickers would begin a new alert each time.
    return _where((*_RANK, PHASE), f"avg_over_time({select(recorded.EXCESS)}[1m])")


def _node_of_rank() -> str:
    # A rank that has moved is told by two agents until its job leaves: the newer progress counts.
    progress = f"on ({names(*_RANK)}, instance) group_left () {select(training.LAST_PROGRESS)}"
    return _where((*_RANK, NODE), f"{select(training.RANK_INFO)} * {progress}")


def _straggler(limits: StragglerLimits) -> Condition:
    # Own work must explain half of it: who writes a checkpoint for all is late, and no straggler.
    explained = (
        f"{by('sum', select(recorded.EXCESS), *_RANK)}"
        f" > {_ON_JOB} group_left () ({limits.above_ratio / 2:g} * {select(recorded.STEP_MEAN)})"
    )
    return Condition(
        expression=f"""(
  {select(recorded.LATENESS_RATIO)} > {limits.above_ratio:g}
  and {_ON_RANK} ({explained})
  and {_training()}
)
* {_ON_RANK} group_left ({PHASE.name})
  {_phase_of_rank()}
* {_ON_RANK} group_left ({NODE.name})
  {_node_of_rank()}"""
    )


def _stalled(limits: StalledLimits) -> Condition:
    buckets = by("sum", select(training.STEP_SECONDS), *_JOB, _LE)
    progress = select(training.LAST_PROGRESS)
    floor = limits.at_least.seconds
    return Condition(
        expression=f"""time() - {by("max", progress, *_JOB)}
> {_ON_JOB} (
  {limits.median_steps:g} * histogram_quantile(0.5, {buckets}) > {floor}
  or {_ON_JOB} {floor} * {by("group", progress, *_JOB)}
)
and {_training()}
unless {_ON_JOB} ({_num_ranks(*PAUSE_PHASES)} > 0)""",
        evidence=_ranks_not_waiting(),
    )


def _ranks_not_waiting() -> str:
    """A template that asks Prometheus which ranks have not entered the collective of the others."""
    of_job = select(training.RANK_WAITING, eq(CLUSTER, "%[1]s"), eq(JOB_ID, "%[2]s"))
    waiting = by("max", of_job, *_RANK)
    missing = f"{waiting} == 0 and {_ON_JOB} {by('max', of_job, *_JOB)} == 1"
    named = f"({missing}) + {_ON_RANK} group_left ({NODE.name}) {_node_of_rank()}"
    asked = f"query (printf `topk({_NAMED_RANKS}, {named})` $labels.cluster $labels.job_id)"
    return (
        f'{{{{ with {asked} | sortByLabel "rank" }}}}'
        "Not waiting with the others: "
        "{{ range $i, $one := . }}{{ if $i }}, {{ end }}"
        "rank {{ $one.Labels.rank }} on {{ $one.Labels.node }}{{ end }}."
        "{{ else }}No rank stands apart: all of them wait, or none does.{{ end }}"
    )


def _not_finite(limits: NotFiniteLimits) -> Condition:
    steps = select(training.NONFINITE_STEPS)
    # A counter that is born above zero shows no increase: its whole value is news.
    born = f"({steps} > 0 unless {steps} offset {limits.window})"
    grown = increase(training.NONFINITE_STEPS, limits.window.text)
    return Condition(expression=by("sum", f"{grown} > 0 or {born}", *_JOB))


CONDITIONS: Mapping[type[Limits], Callable[[Any], Condition]] = {
    StragglerLimits: _straggler,
    StalledLimits: _stalled,
    NotFiniteLimits: _not_finite,
}


def _links(symptom: Symptom, delivery: Delivery) -> dict[str, str]:
    board = f"{delivery.dashboard_base}/d/lockstep-job"
    variables = [f"var-{x.name}={{{{ urlquery $labels.{x.name} }}}}" for x in _JOB]
    return {
        "runbook_url": f"{delivery.runbook_base}{symptom.alert}.md",
        "dashboard_url": f"{board}?{'&'.join(variables)}",
    }


def alert_rule(symptom: Symptom, delivery: Delivery) -> dict[str, object]:
    """One alerting rule in the words of a Prometheus rule file."""
    condition = CONDITIONS[type(symptom.limits)](symptom.limits)
    rule: dict[str, object] = {"alert": symptom.alert, "expr": condition.expression}
    if symptom.pending:
        rule["for"] = symptom.pending.text
    if symptom.keep_firing:
        rule["keep_firing_for"] = symptom.keep_firing.text
    rule["labels"] = {"severity": symptom.severity}
    rule["annotations"] = {
        "summary": symptom.summary,
        "description": f"{symptom.description} {condition.evidence}".strip(),
        **_links(symptom, delivery),
    }
    return rule


def rule_groups(symptoms: tuple[Symptom, ...], delivery: Delivery) -> list[dict[str, object]]:
    """The recording group, whose rules feed each other in order, and the alerts over it."""
    interval = delivery.interval.text
    records = [{"record": made.name, "expr": made.expression} for made in recorded.RECORDED]
    alerts = [alert_rule(symptom, delivery) for symptom in symptoms]
    return [
        {"name": RECORDING_GROUP, "interval": interval, "rules": records},
        {"name": ALERT_GROUP, "interval": interval, "rules": alerts},
    ]
