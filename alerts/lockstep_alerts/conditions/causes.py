"""Causes that stand beside a page: which they are, in order of weight, each with its begin."""

from lockstep_alerts.conditions.evidence import listing
from lockstep_catalogue import foreign, training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import Matcher, eq, has, names, select

_REMEMBERED = "1h"
_MOST = 8
_ITEM = (
    "{{ $series.Labels.alertname }}{{ with $series.Labels.cause }} ({{ . }}){{ end }}"
    "{{ with $series.Labels.node }} on {{ . }}{{ end }}{{ with $series.Labels.gpu }}, GPU {{ . }}"
    "{{ end }}{{ with $series.Labels.source }} {{ . }}{{ end }} since"
    " {{ $series.Value | humanizeTimestamp }}"
)


def causes_of_job(cluster: str, job_id: str) -> str:
    """PromQL: causes of a job and of the nodes that it has or had, with the time of their begin."""
    stands = (has(foreign.WEIGHT), *match_cluster(cluster))
    of_job = select(foreign.ALERTS_FOR_STATE, *stands, eq(JOB_ID, job_id))
    of_nodes = select(foreign.ALERTS_FOR_STATE, *stands, has(NODE), eq(JOB_ID, ""))
    ranks = select(training.RANKS, *match_cluster(cluster), eq(JOB_ID, job_id))
    here = f"on ({names(CLUSTER, NODE)}) last_over_time({ranks}[{_REMEMBERED}])"
    return f"{of_job} or ({of_nodes} and {here})"


def causes_of_cluster(cluster: str) -> str:
    """PromQL: every cause of a cluster."""
    return select(foreign.ALERTS_FOR_STATE, has(foreign.WEIGHT), *match_cluster(cluster))


def match_cluster(cluster: str) -> tuple[Matcher, ...]:
    """A matcher of the cluster; none of one without a name."""
    return (eq(CLUSTER, cluster),) if cluster else ()


def causes(is_of_job: bool) -> str:
    """A template: the causes of a page."""
    labels: tuple[Label, ...] = (CLUSTER, JOB_ID) if is_of_job else (CLUSTER,)
    query = causes_of_job("%[1]s", "%[2]s") if is_of_job else causes_of_cluster("%[1]s")
    return listing(f"({query})", _ITEM, *labels, most=_MOST, order=foreign.WEIGHT)
