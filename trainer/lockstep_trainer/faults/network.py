"""A slow network of one rank: less bandwidth, and delay and loss in both directions of its link."""

import os
from contextlib import contextmanager

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Step, Target, Value
from lockstep_trainer.faults.link import LINK, Conditions, OwnLink
from lockstep_trainer.layout.mesh import Layout

NAME = "slow-network"


@contextmanager
def _slow(fault: Fault, target: Target) -> Step:
    link = OwnLink.of(os.environ)
    link.apply(conditions_of(fault))
    yield
    # The link stays as it is while the next step has the fault too.
    if not fault.is_due(target.batch[0] + 1):
        link.apply(Conditions())


def conditions_of(fault: Fault) -> Conditions:
    """The conditions of the link while the fault lasts."""
    return Conditions(
        bits_per_second=int(fault.values["mbit"] * 1e6) or None,
        delay_seconds=fault.values["delay"],
        loss_ratio=fault.values["loss_percent"] / 100,
    )


def _refuses(_fault: Fault, _config: TrainConfig, _layout: Layout) -> str | None:
    if LINK in os.environ:
        return None
    return (
        "it needs ranks in network namespaces of their own; in a checkout, start them as root by "
        "PYTHONPATH=bench python -m trainer_validation.slow_network"
    )


KIND = Kind(
    name=NAME,
    in_step=_slow,
    values=(
        Value(name="mbit", low=0, high=100_000, default=0),
        Value(name="delay", low=0, high=10, default=0, sort="duration"),
        Value(name="loss_percent", low=0, high=100, default=0),
    ),
    refuses=_refuses,
)
