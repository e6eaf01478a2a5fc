"""Limits of alerts/slos.yaml by which other programs judge; written by ``make generate``."""

import math

from lockstep_catalogue.windows import ScrapeWindows

DECLARED = ScrapeWindows(scrape_seconds=15)
"""What follows from the scrape interval."""
QUEUE_WAIT_TARGETS = ((8.0, 900.0), (64.0, 3600.0), (512.0, 14400.0), (math.inf, 43200.0))
"""Most GPUs and the seconds that a job of this size may wait; each is an edge of the histogram."""
PREEMPTION_GRACE_SECONDS = 600.0
"""What a preemption may cost beyond an interval of checkpoints."""
MIN_WAIT_RATIO = 0.001
"""Share of the step that some rank of a healthy group waits at least."""
MAX_OTHER_RATIO = 0.25
"""Share of the step in no marked phase from which on it may hide a slow rank."""
SLO_GOALS = {
    "job_success": 0.95,
    "job_success_gpu_seconds": 0.97,
    "time_to_complete": 0.9,
    "queue_wait": 0.9,
    "checkpoint_success": 0.99,
    "preemption_loss": 0.95,
    "resume_success": 0.99,
    "ettr": 0.9,
    "goodput": 0.6,
    "requeue": 0.95,
}
"""Share of good events that is promised over 28 days, by objective that the ledger counts."""
