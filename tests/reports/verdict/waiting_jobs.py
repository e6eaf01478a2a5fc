"""Jobs on hosts whose cores other processes have: who waits for a core, and for how long."""

from dataclasses import replace

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.recording.steps import Steps

from ..synthetic_job import Slow, SyntheticJob, recording_of

LATE = Slow(rank=1, seconds=0.05, from_step=60, until_step=140)


def analysed(steps: Steps) -> StepAnalysis:
    return analyse(recording_of(steps))


def waiting(job: SyntheticJob, *waits: Slow) -> Steps:
    """The job's steps, in which these waits for a core are known and all others are zero."""
    steps = job.steps()
    run_queue = np.zeros_like(steps.seconds)
    for wait in waits:
        run_queue[wait.rank, wait.from_step : wait.until_step] += wait.seconds
    return replace(steps, run_queue=run_queue)


def crowded(steps: Steps, wait_ratio: float) -> Steps:
    """The same steps on a host where all ranks wait so long for each second of their work."""
    own = {name: (1 + wait_ratio) * steps.phases[name] for name in OWN_WORK_PHASES}
    phases = steps.phases | own
    work = np.sum(list(own.values()), axis=0)
    # Whoever works longest waits for nobody but the transfer.
    phases["sync"] = work.max(axis=0) + 0.01 - work
    waits = wait_ratio * np.sum([steps.phases[name] for name in OWN_WORK_PHASES], axis=0)
    return replace(steps, phases=phases, seconds=work + phases["sync"], run_queue=waits)
