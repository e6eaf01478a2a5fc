"""Which kinds of objects the server has: asked of its discovery, not listed here."""

from dataclasses import dataclass
from typing import Any

from lockstep_ledger.feeds.kubernetes.fields import list_of, part_of, text_of
from lockstep_ledger.feeds.kubernetes.server import ApiServer

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
FOLLOWED = frozenset({
    "jobs.batch", "jobsets.jobset.x-k8s.io", "trainjobs.trainer.kubeflow.org",
    "pytorchjobs.kubeflow.org", "tfjobs.kubeflow.org", "xgboostjobs.kubeflow.org",
    "paddlejobs.kubeflow.org", "jaxjobs.kubeflow.org", "mpijobs.kubeflow.org",
    "rayjobs.ray.io", "rayclusters.ray.io", "jobs.batch.volcano.sh",
    "leaderworkersets.leaderworkerset.x-k8s.io", "workloads.kueue.x-k8s.io",
    "resourceclaims.resource.k8s.io",
})  # fmt: skip
"""Kinds that are followed as soon as the server has them; any other once it owns pods with GPUs."""
WORKLOADS, CLAIMS = "workloads.kueue.x-k8s.io", "resourceclaims.resource.k8s.io"
PARTS = frozenset({WORKLOADS, CLAIMS})
"""Kinds that are never jobs themselves."""
KNOWN_TO_PODS = frozenset({"jobsets.jobset.x-k8s.io", "jobs.batch"})
"""Kinds whose uid is a label of their pods: a launcher knows its job by the outermost of them."""
SUBMITTERS = frozenset({"CronJob", "CronWorkflow", "ScheduledWorkflow", "Node"})
"""Kinds that own several jobs, or only hold pods: what they own is a job by itself."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def name(self) -> str:
        """Plural and group, as RBAC and CRDs name it."""
        return f"{self.plural}.{self.group}".rstrip(".")

    def path(self, namespace: str = "") -> str:
        """Path of its list."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return (
            f"{base}/namespaces/{namespace}/{self.plural}" if namespace else f"{base}/{self.plural}"
        )


PODS = Kind("", "v1", "Pod", "pods")


def discover(server: ApiServer) -> dict[str, Kind]:
    """The namespaced kinds that can be listed and watched, by name, in the preferred version.

    Raises:
        ServerError: a refusal; or one of ``Failure``.
    """
    found: dict[str, Kind] = {}
    for group in list_of(part_of(server.send("GET", "/apis", accept=_DISCOVERY)).get("items")):
        name = text_of(part_of(group, "metadata").get("name"))
        for version in reversed(list_of(group.get("versions"))):
            for each in list_of(version.get("resources")):
                kind = _read(name, text_of(version.get("version")), each)
                if kind is not None:
                    found[kind.name] = kind
    return found


def _read(group: str, version: str, resource: Any) -> Kind | None:
    verbs = resource.get("verbs")
    plural, kind = text_of(resource.get("resource")), part_of(resource, "responseKind").get("kind")
    is_followable = isinstance(verbs, list) and {"list", "watch"} <= set(map(str, verbs))
    if resource.get("scope") != "Namespaced" or not is_followable or not plural:
        return None
    return Kind(group, version, text_of(kind), plural)
