"""What people should hear of a situation: pages by what is lost, tickets, owners, or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from .world import World

NOT_PROGRESSING, LOSING, AT_RISK = "JobNotProgressing", "JobLosing", "WorkAtRisk"
CLUSTER, BLIND = "ClusterLosing", "Blind"
PAGES = (NOT_PROGRESSING, LOSING, AT_RISK, CLUSTER, BLIND)
TICKET = "ticket"  # anything below a page, the owner's alerts too
NOTICE = "notice"  # a page or a ticket: somebody hears of it


@dataclass(frozen=True)
class Expectation:
    """One notification about an object.

    Attributes:
        kinds: names of pages any of which is right, or ``TICKET``, or ``NOTICE``.
        about: labels of the notification, such as ``{"job_id": "A"}``.
        at: minute in which the loss begins; nothing may be notified before it.
        within: minutes after it until which the notification comes.
    """

    kinds: tuple[str, ...]
    about: dict[str, str]
    at: float
    within: float


@dataclass(frozen=True)
class Case:
    """A situation and all that people may hear of it.

    Attributes:
        hours: length.
        expectations: the notifications that come, each once; no page comes beside them.
        is_quiet: whether no ticket either comes beside them.
        is_ordinary: whether it is a day on which nobody may be woken.
    """

    name: str
    world: World
    hours: float
    expectations: Sequence[Expectation] = ()
    is_quiet: bool = False
    is_ordinary: bool = True


def page(
    kind: str | tuple[str, ...], about: str, at: float, within: float, cluster: str = ""
) -> Expectation:
    """A page about a job; about a cluster where ``about`` is empty; a node's name begins with n."""
    labels = {"node" if about[0] == "n" else "job_id": about} if about else {}
    if cluster:
        labels["cluster"] = cluster
    return Expectation((kind,) if isinstance(kind, str) else kind, labels, at, within)


def ticket(about: str, at: float, within: float) -> Expectation:
    """Below a page: of operators or of the owner."""
    return page(TICKET, about, at, within)
