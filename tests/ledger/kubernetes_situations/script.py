"""Situations of ``situations.yaml`` and ``outages.yaml``: verbs, and the jobs expected after them.

A verb is one of ``Script`` or, where it has none of this name, of ``Cluster``.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from .cluster import Cluster
from .diary import Diary
from .manifests import Manifest, condition, custom, job, pod
from .scenario import Between, ExpectedJob, Figure, Rows, Situation

_FIGURES = frozenset({"gpu_seconds", "queue_wait_seconds", "started", "ended"})
Fields = dict[str, Any] | None


class Script:
    """The verbs that make objects and end pods; an owner is named by its kind."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._objects: dict[str, Manifest] = {}
        self._pod: Manifest = {"metadata": {"name": ""}}

    def job(self, name: str, gpus: int, fields: Fields = None) -> None:
        self._create(partial(job, name, gpus), fields or {})

    def pod(self, name: str, gpus: int, fields: Fields = None) -> None:
        self._create(partial(pod, name, gpus), fields or {})

    def custom(self, kind: str, name: str, fields: Fields = None) -> None:
        self._create(partial(custom, kind, name), fields or {})

    def _create(self, make: Callable[..., Manifest], fields: dict[str, Any]) -> None:
        """Fields are those of the maker and these.

        - owner: kind of the object above it.
        - claim: name of a template of claims and number of its devices, in place of limits.
        - is_elsewhere: whether it is in the second namespace.
        """
        own = {each: fields[each] for each in ("owner", "claim", "is_elsewhere") if each in fields}
        manifest = make(**{name: value for name, value in fields.items() if name not in own})
        if "claim" in own:
            _claim_devices(manifest["spec"]["template"], *own["claim"])
        if "is_elsewhere" in own:
            manifest["metadata"]["namespace"] = self.cluster.second_namespace
        above = self._objects[own["owner"]] if "owner" in own else None
        self._objects[manifest["kind"]] = self.cluster.apply(manifest, owner=above)

    def set_status(self, kind: str, name: str, reasons: dict[str, str]) -> None:
        found = [condition(each, reason=reason) for each, reason in reasons.items()]
        self.cluster.patch(kind, name, {"status": {"conditions": found}}, status=True)

    def admit(self, name: str) -> None:
        """Admit a Workload and resume its Job, as Kueue does."""
        self.set_status("Workload", name, {"QuotaReserved": "", "Admitted": ""})
        self.cluster.patch("Job", name, {"spec": {"suspend": False}})

    def preempt(self, name: str) -> None:
        """Evict a Workload and suspend its Job, as Kueue does."""
        conditions = [
            condition("Evicted", reason="Preempted"),
            condition("Admitted", "False", "NoReservation"),
            condition("QuotaReserved", "False", "Pending"),
            condition("Preempted", reason="InClusterQueue"),
        ]
        self.cluster.patch("Workload", name, {"status": {"conditions": conditions}}, status=True)
        self.cluster.patch("Job", name, {"spec": {"suspend": True}})
        self.cluster.wait_pods(name, 0)

    def wait_pods(self, prefix: str, count: int, phase: str = "Running") -> None:
        for found in self.cluster.wait_pods(prefix, count, phase):
            self._pod = found

    def wait_next(self, prefix: str) -> None:
        """Wait for a running pod other than the one before."""
        before = self._pod["metadata"]["name"]
        for _ in range(600):
            for found in self.cluster.list_pods(prefix):
                if (
                    found["status"].get("phase") == "Running"
                    and found["metadata"]["name"] != before
                ):
                    self._pod = found
                    return
            self.cluster.wait(0.2)
        raise AssertionError(f"no pod {prefix}* other than {before!r} runs")

    def wait_ended(self, name: str) -> None:
        """Wait until the ledger has an ended job of this name."""
        self.cluster.wait_recorded(name, is_open=False)

    def end(self, exit_code: int = 0, disruption: str = "", reason: str = "") -> None:
        name = self._pod["metadata"]["name"]
        self.cluster.end_pod(name, exit_code, reason, disruption=disruption)

    def report_from_pod(self, name: str, outcome: str, kind: str) -> None:
        """A launcher in the pod that was waited for tells of its job, an object of this kind."""
        alias = f"kubernetes:{self._objects[kind]['metadata']['uid']}"
        self.cluster.report_from_launcher(name, self._pod["spec"]["nodeName"], outcome, alias)


def _claim_devices(template: Manifest, claim: str, count: int) -> None:
    """Let pods claim devices in place of limits; the annotation is for the diary."""
    template["metadata"]["annotations"]["lab/gpus"] = str(count)
    template["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": claim}]
    template["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}


def _figure(value: Any, name: str) -> Figure | Between:
    """A number, bounds, or what the server wrote of the pods of a job, by word."""
    if isinstance(value, list):
        return Between(*(_number(each, name) for each in value))
    return _number(value, name)


def _number(value: Any, name: str) -> Figure:
    if not isinstance(value, str):
        return value  # type: ignore[no-any-return]  # a number of YAML
    word, _, since = value.partition(" since ")

    def waited(diary: Diary) -> float:
        return diary.first_start(name) - diary.at[since or f"created:{name}"]

    return {
        "measured": lambda diary: diary.gpu_seconds(name),
        "waited": waited,
        "first_start": lambda diary: diary.first_start(name),
        "last_end": lambda diary: diary.last_end(name),
    }[word]


def _expected(fields: dict[str, Any]) -> ExpectedJob:
    pods = fields.get("pods", fields["name"])
    values = {
        name: _figure(value, pods) if name in _FIGURES else value for name, value in fields.items()
    }
    return ExpectedJob(**values | {"refused": tuple(fields.get("refused", ()))})


def _read(entry: dict[str, Any]) -> Situation:
    del entry["why"]
    expected = tuple(map(_expected, entry.pop("expected")))
    return Situation(expected=expected, absent=tuple(entry.pop("absent", ())), **entry)


def perform_rows(rows: Rows, cluster: Cluster) -> None:
    """Do one verb after the other."""
    script = Script(cluster)
    for verb, *arguments in rows:
        getattr(script if hasattr(script, verb) else cluster, verb)(*arguments)


def _outage(number: int, way: str, fate: str) -> Situation:
    found, name = FATES[fate], f"o{number:02d}-{way}-{fate}"
    is_seen = WAYS[way].get("sees_all", False) or "unseen" not in found
    fields = {"name": name, **found["exact" if is_seen else "unseen"]}
    is_open = fields.get("is_open", False)
    if not is_open:
        fields["gpu_seconds"] = "measured" if is_seen else [0, "measured"]
    phases = {
        "before": _named(found["before"], name),
        "during": _named(found["during"], name),
        "after": [["wait_recorded" if is_open else "wait_ended", name]],
    }
    return Situation(
        name=f"outage-{way}-{fate}",
        script=(),  # all fates of a way share one outage
        expected=(_expected(fields),),
        exclusive=True,
        lab_wide=WAYS[way].get("lab_wide", False),
        way=way,
        phases=phases,
    )


def _named(rows: Rows, name: str) -> Rows:
    return [[name if word == "NAME" else word for word in row] for row in rows]


def _load(file: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(file).read_text(encoding="utf-8"))


WAYS, FATES = _load("outages.yaml").values()
SITUATIONS = [
    *map(_read, _load("situations.yaml")),
    *(_outage(number, *each) for number, each in enumerate(product(WAYS, FATES))),
]
