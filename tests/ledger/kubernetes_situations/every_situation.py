"""All situations, in the order of the issue's parts."""

from . import (
    attempts,
    exit_statuses,
    ids_and_texts,
    kinds,
    kinds_found,
    kueue,
    only_training,
    outages_by_way,
    outages_of_feeds,
    outages_of_server,
    time_by_pods,
    whose_fault,
)
from .scenario import Situation, collect

MODULES = (
    time_by_pods,
    attempts,
    whose_fault,
    exit_statuses,
    kinds,
    kinds_found,
    kueue,
    only_training,
    outages_by_way,
    outages_of_feeds,
    outages_of_server,
    ids_and_texts,
)

SITUATIONS: list[Situation] = [
    situation for module in MODULES for situation in collect(vars(module))
]
