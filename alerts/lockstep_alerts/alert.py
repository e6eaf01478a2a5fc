"""One alert: what it means, when it fires, whom it wakes and how soon."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_alerts.conditions import AREAS as CONDITIONS_BY_AREA
from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.reading.model import Duration, delivery_seconds
from lockstep_catalogue import RECORDED, Recorded, recorded
from lockstep_catalogue.windows import ScrapeWindows


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """One rule file.

    Attributes:
        name: last word of the file's name and of its group.
        every_seconds: time between two evaluations at least; they follow the scrapes otherwise.
    """

    name: str
    every_seconds: int = 0
    records: tuple[Recorded, ...] = ()

    @property
    def rules_file(self) -> str:
        """Name of the file with the rules."""
        return f"{self.group}.rules.yaml"

    @property
    def group(self) -> str:
        """Name of the group of its rules."""
        return f"lockstep-{self.name}"


_FABRIC_FROM = RECORDED.index(recorded.HIT)
_SLICES_FROM = RECORDED.index(recorded.JOB_PHASES)
_OBJECTIVES_FROM = RECORDED.index(recorded.COUNTER_TOTAL)
# What waits for ten minutes, or counts in hours, needs no evaluation at each scrape.
_SLOW_SECONDS = 30
JOBS = Area(name="jobs", records=RECORDED[:_FABRIC_FROM])
ATTEMPTS = Area(name="attempts")
NODES = Area(name="nodes")
FABRIC = Area(name="fabric", records=RECORDED[_FABRIC_FROM:_SLICES_FROM])
CAPACITY = Area(name="capacity", every_seconds=_SLOW_SECONDS)
TELEMETRY = Area(name="telemetry", every_seconds=_SLOW_SECONDS)
# Windows are of minutes to weeks; a sample of a slice covers a minute too.
_OBJECTIVE_SECONDS = 60
SLICES = Area(
    name="slices", every_seconds=_OBJECTIVE_SECONDS, records=RECORDED[_SLICES_FROM:_OBJECTIVES_FROM]
)
OBJECTIVES = Area(
    name="objectives", every_seconds=_OBJECTIVE_SECONDS, records=RECORDED[_OBJECTIVES_FROM:]
)
AREAS = (JOBS, ATTEMPTS, NODES, FABRIC, CAPACITY, TELEMETRY, SLICES, OBJECTIVES)
_AREA_BY_NAME: Mapping[str, Area] = {area.name: area for area in AREAS}
RULES_FILES = "lockstep-*.rules.yaml"
"""All rule files, as Prometheus' ``rule_files`` takes them."""


def area_of(kind: str) -> Area:
    """The area of a kind of condition."""
    return next(_AREA_BY_NAME[name] for name, kinds in CONDITIONS_BY_AREA.items() if kind in kinds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        failure: the failure mode it answers, such as ``F2``; of an objective the measure, ``M1``;
            empty for an alert on the monitoring itself.
        severity: ``critical`` wakes somebody, ``warning`` makes a ticket, others notify nobody.
        pending: how long the condition must hold; None fires at once.
        keep_firing: how long it fires on after the condition has ended.
        is_of_job: whether its labels name a job, so that the job's board can be linked.
        route: ``owners`` for what the owner of the job repairs; empty for operators.
        weight: place among the causes that a page carries, from 1; 0 of others.
    """

    name: str
    failure: str
    severity: str
    area: Area
    condition: Condition
    pending: Duration | None
    keep_firing: Duration | None
    summary: str
    description: str
    is_of_job: bool = True
    route: str = ""
    weight: int = 0

    @property
    def is_page(self) -> bool:
        """Whether it wakes somebody."""
        return self.severity == "critical"

    @property
    def names_owner(self) -> bool:
        """Whether its notification says whose job it is."""
        return self.is_of_job and self.severity in ("critical", "warning")

    def evaluation_seconds(self, windows: ScrapeWindows) -> int:
        """Time between two evaluations of the alert."""
        return max(windows.evaluation_seconds, self.area.every_seconds)

    def deadline_seconds(self, windows: ScrapeWindows) -> int:
        """From the fault to the notification, at the latest.

        The samples that the condition needs, the scrape that takes the last of them, the
        evaluation after it, those that ``for`` asks for, and the delivery.
        """
        every = self.evaluation_seconds(windows)
        pending = self.pending.seconds if self.pending else 0
        looks_seconds = every * math.ceil(pending / every)
        samples_seconds = self.condition.detection_seconds(windows) + windows.scrape_seconds
        return (
            samples_seconds
            + every
            + looks_seconds
            + delivery_seconds(self.severity, windows.evaluation_seconds)
        )
