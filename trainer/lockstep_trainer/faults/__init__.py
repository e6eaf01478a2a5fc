"""Faults on purpose, by rank and step: really late, really gone, really wrong, and replayable.

A kind of fault is a file of this folder and a line in ``kinds``.
"""

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.inject import inject
from lockstep_trainer.faults.kinds import KINDS
from lockstep_trainer.faults.parse import parse_all
from lockstep_trainer.faults.plan import check_faults, faults_of, told_wrong

__all__ = ["KINDS", "Fault", "check_faults", "faults_of", "inject", "parse_all", "told_wrong"]
