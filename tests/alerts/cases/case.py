"""A case, and the functions that yield the cases that prove a condition."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lockstep_alerts.conditions.condition import Condition

from .synthetic import Samples, Timing


@dataclass(frozen=True, slots=True)
class Case:
    """Series that are fed in, and what fires at one moment.

    Attributes:
        name: what happens, in a few words.
        series: input of promtool, from time 0.
        fires: labels of the alert that fires then, beyond name and severity; None for silence.
        at_seconds: when the alert is evaluated; None for the moment by which it has to fire.
        sign: of the alert that it is about; empty where the alert has one condition.
    """

    name: str
    series: list[Samples]
    fires: Mapping[str, str] | None = None
    at_seconds: int | None = None
    sign: str = ""


_Kind = TypeVar("_Kind", bound=Condition)
_CASES: dict[type[Condition], Callable[[Any, Timing], list[Case]]] = {}


def proves(
    kind: type[_Kind],
) -> Callable[[Callable[[_Kind, Timing], list[Case]]], Callable[[_Kind, Timing], list[Case]]]:
    """Registers a function that yields the cases of a kind of condition, and of its subclasses."""

    def register(
        cases: Callable[[_Kind, Timing], list[Case]],
    ) -> Callable[[_Kind, Timing], list[Case]]:
        _CASES[kind] = cases
        return cases

    return register


def find_cases(condition: Condition, timing: Timing) -> list[Case]:
    kind = type(condition)
    for each in kind.__mro__:
        if each in _CASES:
            return _CASES[each](condition, timing)
    raise LookupError(
        f"{kind.__name__}: has no cases; add a function with @proves({kind.__name__}) "
        "to the module of its area in tests/alerts/cases"
    )
