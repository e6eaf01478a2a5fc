"""Every fate of a job while something is away, for each way to be away.

After it nothing is lost, nothing is there twice, and nothing is billed after its end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .cluster import Cluster
from .diary import Diary
from .manifests import job
from .scenario import Between, ExpectedJob, Phases, Situation

Step = Callable[[Cluster, str], None]
Act = tuple[Any, ...]


@dataclass(frozen=True)
class Way:
    """A way to be away: how feed, server, ledger or token go and come back.

    Attributes:
        word: of the names of its jobs.
        leave, come_back: actions with their arguments, as (verb, argument).
        sees_all: the feed sees what happens meanwhile, so the record is as exact as without it.
        lab_wide: the server restarts for all.
    """

    word: str
    leave: tuple[Act, ...]
    come_back: tuple[Act, ...]
    sees_all: bool = False
    lab_wide: bool = False

    def act(self, c: Cluster, acts: tuple[Act, ...]) -> None:
        """Do one after the other."""
        for verb, *arguments in acts:
            getattr(c, verb)(*arguments)


WAYS = (
    Way("stopped", (("stop", "feed"),), (("start", "feed"),)),
    # All revisions grow too old meanwhile (410).
    Way("expired", (("stop", "feed"),), (("compact",), ("start", "feed")), lab_wide=True),
    Way("ledger", (("stop", "ledger"),), (("start", "ledger"),), sees_all=True),
    # The feed dies while it still holds what the ledger has not got.
    Way("both", (("kill", "ledger"),),
        (("kill", "feed"), ("start", "ledger"), ("start", "feed"))),
    # The server remembers a token for ten seconds.
    Way("token", (("revoke_token",), ("wait", 12)), (("rotate_token",),)),
    Way("leader", (("start", "feed-2"), ("wait", 2), ("kill", "feed")),
        (("start", "feed"), ("wait", 1), ("stop", "feed-2"))),
)  # fmt: skip


@dataclass(frozen=True)
class Fate:
    """What becomes of a job while something is away.

    Attributes:
        exact: what the record says where the feed sees it, or reads it from the server later.
        unseen: what it says where the feed did not see it and the server has forgotten it.
    """

    word: str
    before: Step
    during: Step
    exact: ExpectedJob
    unseen: ExpectedJob | None = None


def _nothing(_c: Cluster, _name: str) -> None:
    """Do nothing."""


def _start(c: Cluster, name: str, **spec: Any) -> None:
    c.apply(job(name, 2, **spec))
    c.wait_pods(name, 1)
    c.wait_recorded(name)
    c.wait(1)


def _end(c: Cluster, name: str) -> None:
    (only,) = c.wait_pods(name, 1)
    c.end_pod(only["metadata"]["name"])
    c.wait_condition("Job", name, "Complete")


def _end_and_clean(c: Cluster, name: str) -> None:
    (only,) = c.wait_pods(name, 1)
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
    Fate("ends", _start, _end, ENDED),
    Fate("fails", _start, _fail, ExpectedJob("", "failed", "user", "host_oom", attempts=1)),
    Fate("deleted", _start, _delete, ExpectedJob("", "cancelled"),
         replace(GONE, refused=("failed", "succeeded"))),
    Fate("cleaned", partial(_start, ttlSecondsAfterFinished=1), _end_and_clean,
         replace(ENDED, refused=("failed",)), GONE),
    Fate("begins", _nothing, _begin, ExpectedJob("", is_open=True, num_gpus=2)),
    Fate("lives", _nothing, _live, ENDED),
    Fate("retries", partial(_start, backoffLimit=3), _retry,
         ExpectedJob("", is_open=True, attempts=2)),
    # It is deleted and submitted again by its name.
    Fate("again", _start, _replace, ExpectedJob("", is_open=True, attempts=2)),
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
    return Situation(
        f"outage-{way.word}-{fate.word}",
        phases.before,  # all fates of a way share one outage
        (expected,),
        exclusive=True,
        lab_wide=way.lab_wide,
        way=way.word,
        phases=phases,
    )


BY_WAY = [
    _make(number, way, fate)
    for number, (way, fate) in enumerate((way, fate) for way in WAYS for fate in FATES)
]
