"""Types of the catalogue: a metric with its name, kind, unit, labels, help and source."""

import re
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import TypeVar

_NAME = re.compile(r"lockstep_(train|gpu|nvlink|pcie|fabric|host|agent|ledger)_[a-z0-9_]+")
_LABEL = re.compile(r"[a-z][a-z0-9_]*")
# Prometheus sets these two on every series of a target and renames ours to exported_job.
_TARGET_LABELS = frozenset({"job", "instance"})


class Kind(Enum):
    """The Prometheus type of a family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Unit(Enum):
    """A base unit; its value is the word that ends the name, before ``_total``."""

    NONE = ""
    SECONDS = "seconds"
    TIMESTAMP_SECONDS = "timestamp_seconds"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes_per_second"
    RATIO = "ratio"
    WATTS = "watts"
    JOULES = "joules"
    CELSIUS = "celsius"
    HERTZ = "hertz"
    LANES = "lanes"


def kind_of_name(name: str, *, has_buckets: bool = False) -> Kind:
    """The kind of a family: ``_total`` ends counters, and a histogram has buckets."""
    if name.endswith("_total"):
        return Kind.COUNTER
    return Kind.HISTOGRAM if has_buckets else Kind.GAUGE


def unit_of_name(name: str) -> Unit:
    """The unit that a name ends in, before ``_total``."""
    stem = name.removesuffix("_total")
    ends = [unit for unit in Unit if unit.value and stem.endswith("_" + unit.value)]
    return max(ends, key=lambda unit: len(unit.value), default=Unit.NONE)


class Stability(Enum):
    """Promise about a name: a stable name changes only with a major version."""

    STABLE = "stable"
    TRIAL = "trial"


class Endpoint(Enum):
    """The program whose ``/metrics`` serves a family."""

    AGENT = "agent"
    LEDGER = "ledger"


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A label name with its meaning and, for small closed sets, every value it can take.

    Raises:
        ValueError: the name is not a label name, or is one of Prometheus' own target labels.
    """

    name: str
    help: str
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _LABEL.fullmatch(self.name) or self.name in _TARGET_LABELS:
            raise ValueError(
                f"label name {self.name!r} is not allowed; "
                "use lower case and neither job nor instance"
            )


AGENT_LABELS = (
    Label(name="cluster", help="name of the cluster"),
    Label(name="node", help="name of the machine"),
)
"""The labels of every series of the agent, so that any two of a node can be joined."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Family:
    """Series of one name, whoever makes them."""

    name: str
    labels: tuple[Label, ...]
    help: str

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels, in order."""
        return tuple(label.name for label in self.labels)

    @property
    def exposed_labels(self) -> tuple[Label, ...]:
        """The labels that a series has in Prometheus."""
        return self.labels


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(_Family):
    """One metric family that a component of Lockstep exposes.

    Its kind and unit follow from its name: ``_total`` ends counters, buckets make a histogram, and
    the unit is the last word.

    Args:
        name: full name, with the prefix and the unit as its last word.
        labels: those that a reading gives; every series of the agent has its cluster and node too.
        source: where the value comes from, in one phrase.
        buckets: upper bounds of a histogram, rising, without infinity.
        page_field: field of the rank page's periodic slot that holds this total; the agent sums it
            over the ranks of a node, by item where the field has items.
        endpoint: the program that serves the family, and no other does.
        for_users: why the family is served though no rule, panel or report of Lockstep reads it.

    Raises:
        ValueError: name, help or buckets are not allowed; the message says which.
    """

    source: str
    buckets: tuple[float, ...] = ()
    stability: Stability = Stability.TRIAL
    page_field: str = ""
    endpoint: Endpoint = Endpoint.AGENT
    for_users: str = ""
    kind: Kind = field(init=False, compare=False)
    unit: Unit = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"metric name {self.name!r} needs lockstep_, a part and lower case")
        object.__setattr__(self, "kind", kind_of_name(self.name, has_buckets=bool(self.buckets)))
        object.__setattr__(self, "unit", unit_of_name(self.name))
        if not self.help.endswith(".") or "\n" in self.help:
            raise ValueError(f"help of {self.name} must be one sentence that ends with a full stop")
        if self.buckets and self.kind is not Kind.HISTOGRAM:
            raise ValueError(f"{self.name}: a counter has no buckets; drop _total or the buckets")
        if list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"{self.name}: buckets {self.buckets} must rise")

    @property
    def exposed_labels(self) -> tuple[Label, ...]:
        """The labels that a series has in Prometheus: also who exposes it."""
        if self.endpoint is not Endpoint.AGENT:
            return self.labels
        return (*(each for each in AGENT_LABELS if each not in self.labels), *self.labels)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names under which samples of this family are stored."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded(_Family):
    """A series that a recording rule computes: level:metric:operations.

    Attributes:
        level: what the name begins with, where it is not the labels: a name that others know; the
            whole name where that has no level.
        every_seconds: time between two evaluations at least; they follow its area's otherwise.
    """

    level: str = ""
    every_seconds: int = 0

    def __post_init__(self) -> None:
        begin, colon, _ = self.name.partition(":")
        level = self.level or "_".join(self.label_names)
        if self.name != level and (not colon or begin != level):
            raise ValueError(f"recorded series {self.name!r} must begin with its labels, {level}:")

    @property
    def unit(self) -> Unit:
        """The unit: of a ratio by the operation; seconds a second have none."""
        metric, _, operation = self.name.rpartition(":")
        if "ratio" in operation:
            return Unit.RATIO
        return Unit.NONE if operation.startswith("rate") else unit_of_name(metric)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetLabel(Label):
    """A label that Prometheus itself sets on every series of a target."""

    def __post_init__(self) -> None:
        """Takes any name: these are the two that our own series must not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreign(_Family):
    """A series that a program outside of Lockstep exposes, and that rules of Lockstep read.

    Its labels are those that the rules read; the program may set more.
    """

    source: str

    @property
    def kind(self) -> Kind:
        """The kind, by the name."""
        return kind_of_name(self.name)

    @property
    def unit(self) -> Unit:
        """The unit, by the name."""
        return unit_of_name(self.name)


Series = Metric | Recorded | Foreign

_Declared = TypeVar("_Declared", Metric, Recorded)


def collect(module: ModuleType, kind: type[_Declared]) -> tuple[_Declared, ...]:
    """What a module declares of a kind, by itself or in a dictionary, in its order."""
    declared = (
        each
        for value in vars(module).values()
        for each in (value.values() if isinstance(value, dict) else (value,))
    )
    return tuple(each for each in declared if isinstance(each, kind))
