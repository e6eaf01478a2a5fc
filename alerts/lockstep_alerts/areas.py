"""The areas of the alerts: one rule file each, with the recorded series that its alerts read.

promtool evaluates all rules of a file in each test of it: a file an area keeps the tests quick.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_alerts.conditions import AREAS as CONDITIONS_BY_AREA
from lockstep_catalogue import RECORDED, Recorded, recorded


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """One rule file.

    Attributes:
        name: last word of the file's name and of its group.
        every_seconds: time between two evaluations at least; they follow the scrapes otherwise.
        records: series that the group computes first, in order.
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
    name="slices",
    every_seconds=_OBJECTIVE_SECONDS,
    records=RECORDED[_SLICES_FROM:_OBJECTIVES_FROM],
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
