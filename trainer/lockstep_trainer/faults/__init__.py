"""Fault injection by rank and step, replayable: ranks that are really late, gone or wrong.

A kind of fault is one file of this folder and one line in ``kinds``.
"""

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.inject import inject
from lockstep_trainer.faults.kinds import KINDS
from lockstep_trainer.faults.parse import parse_all
from lockstep_trainer.faults.plan import apply_startup_faults, check_faults, faults_of

__all__ = [
    "KINDS",
    "Fault",
    "apply_startup_faults",
    "check_faults",
    "faults_of",
    "inject",
    "parse_all",
]
