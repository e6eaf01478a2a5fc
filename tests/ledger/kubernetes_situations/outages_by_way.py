"""Part 5: what can become of a job while something is away, for each way to be away.

After it nothing is lost, nothing is there twice, and nothing is billed after its end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from .diary import Diary
from .manifests import job
from .scenario import Between, Cluster, ExpectedJob, Phases, Situation
from .ways_away import WAYS, Way

Step = Callable[[Cluster, str], None]


@dataclass(frozen=True)
class Fate:
    """What becomes of a job while something is away.

    Attributes:
        exact: what the record says where the feed sees it, or reads it from the server later.
        unseen: what it says where the feed did not see it and the server has forgotten it.
    """

    word: str
    why: str
    before: Step
    during: Step
    exact: ExpectedJob
    unseen: ExpectedJob | None = None


def _nothing(_c: Cluster, _name: str) -> None:
    """Do nothing."""


def _start(c: Cluster, name: str) -> None:
    c.apply(job(name, 2))
    c.wait_pods(name, 1)
    c.wait_recorded(name)
    c.wait(1)


def _start_clean(c: Cluster, name: str) -> None:
    c.apply(job(name, 2, ttlSecondsAfterFinished=1))
    c.wait_pods(name, 1)
    c.wait_recorded(name)


def _start_patient(c: Cluster, name: str) -> None:
    c.apply(job(name, 2, backoffLimit=3))
    c.wait_pods(name, 1)
    c.wait_recorded(name)
    c.wait(1)


def _end(c: Cluster, name: str) -> None:
    c.wait(1)
    (only,) = c.wait_pods(name, 1)
    c.end_pod(only["metadata"]["name"])
    c.wait_condition("Job", name, "Complete")


def _end_and_clean(c: Cluster, name: str) -> None:
    (only,) = c.wait_pods(name, 1)
    c.wait(1)
    c.end_pod(only["metadata"]["name"])
    c.wait_gone("Job", name)


def _fail(c: Cluster, name: str) -> None:
    (only,) = c.wait_pods(name, 1)
    c.end_pod(only["metadata"]["name"], 137, "OOMKilled")
    c.wait_condition("Job", name, "Failed")


def _delete(c: Cluster, name: str) -> None:
    c.wait(1)
    c.delete("Job", name)
    c.wait_gone("Job", name)
    c.wait_pods(name, 0)


def _replace(c: Cluster, name: str) -> None:
    _delete(c, name)
    c.apply(job(name, 2))
    c.wait_pods(name, 1)


def _begin(c: Cluster, name: str) -> None:
    c.apply(job(name, 2))
    c.wait_pods(name, 1)
    c.wait(1)


def _live(c: Cluster, name: str) -> None:
    c.apply(job(name, 2, run=2))
    c.wait_condition("Job", name, "Complete")


def _retry(c: Cluster, name: str) -> None:
    (first,) = c.wait_pods(name, 1)
    before = first["metadata"]["name"]
    c.end_pod(before, 1)
    c.wait_pods(name, 0)
    c.wait_pods(name, 1)


ENDED = ExpectedJob("", "succeeded", attempts=1, refused=("failed", "unknown"))
GONE = ExpectedJob("", refused=("failed",))

FATES = (
    Fate("ends", "a job succeeds", _start, _end, ENDED),
    Fate("fails", "a job runs out of memory", _start, _fail,
         ExpectedJob("", "failed", "user", "host_oom", attempts=1)),
    Fate("deleted", "a running job is deleted", _start, _delete, ExpectedJob("", "cancelled"),
         replace(GONE, refused=("failed", "succeeded"))),
    Fate("cleaned", "a job succeeds and its TTL cleans it up", _start_clean, _end_and_clean,
         replace(ENDED, refused=("failed",)), GONE),
    Fate("begins", "a job begins", _nothing, _begin,
         ExpectedJob("", is_open=True, num_gpus=2)),
    Fate("lives", "a job comes and ends", _nothing, _live, ENDED),
    Fate("retries", "a pod fails and the next one runs", _start_patient, _retry,
         ExpectedJob("", is_open=True, attempts=2)),
    Fate("again", "a job is deleted and submitted again by its name", _start, _replace,
         ExpectedJob("", is_open=True, attempts=2)),
)  # fmt: skip


def _make(number: int, way: Way, fate: Fate) -> Situation:
    name = f"o{number:02d}-{way.word}-{fate.word}"
    found = fate.exact if way.sees_all or fate.unseen is None else fate.unseen

    def count(diary: Diary) -> float:
        return diary.gpu_seconds(name)

    seconds = Between(0, count) if found is fate.unseen else count
    expected = replace(found, name=name, gpu_seconds=None if found.is_open else seconds)
    phases = Phases(
        before=lambda c: fate.before(c, name),
        during=lambda c: fate.during(c, name),
        after=lambda c: c.wait_recorded(name, is_open=expected.is_open),
    )

    def script(c: Cluster) -> None:
        phases.before(c)
        way.leave(c)
        phases.during(c)
        way.come_back(c)
        phases.after(c)

    return Situation(
        f"outage-{way.word}-{fate.word}",
        f"While {way.why}, {fate.why}.",
        script,
        (expected,),
        exclusive=True,
        lab_wide=way.lab_wide,
        outage=True,
        way=way.word,
        phases=phases,
    )


BY_WAY = [
    _make(number, way, fate)
    for number, (way, fate) in enumerate((way, fate) for way in WAYS for fate in FATES)
]
