"""Queue, project, class and name: Slurm's later word wins."""

from .scenario import ExpectedJob, Situation, poll, running, slurm, submit, wait

HELD = ("--hold", "--gpus=1")

SITUATIONS = (
    Situation(
        "moved to another partition while it waits",
        "It ran in batch, so it counts in batch.",
        (
            submit("a", "sleep 2", *HELD, "-p", "main"),
            poll(),
            slurm("scontrol update jobid={a} partition=batch"),
            slurm("scontrol release {a}"),
            wait("a"),
        ),
        (ExpectedJob("succeeded", attempts=1, queue="batch"),),
    ),
    Situation(
        "renamed while it runs",
        "What the page said at its start gives way to Slurm's later word.",
        (
            submit("a", "srun {train} --seconds 600 --until {out}", "--gpus=1", "-J", "draft"),
            running("a"),
            poll(),
            slurm("scontrol update jobid={a} name=final && touch {out}"),
            wait("a"),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(1,), name="final"),),
    ),
    Situation(
        "the QOS is the class",
        "A site says pretraining or debug by QOS.",
        (
            submit("a", "sleep 1", "--qos=pretraining", "--gpus=1"),
            submit("b", "sleep 1", "--qos=debug", "--gpus=1"),
            wait("a"),
            wait("b"),
        ),
        (
            ExpectedJob("succeeded", job_class="pretraining"),
            ExpectedJob("succeeded", job_class="debug", job_id="{b}"),
        ),
    ),
    Situation(
        "a dependency that is never met",
        "sacct by time does not list it, by id it does: pending, then cancelled, without a run.",
        (
            submit("a", "exit 1", "--gpus=1"),
            submit("b", "sleep 1", "--gpus=1", "--dependency=afterok:{a}"),
            wait("a"),
            poll(),
            slurm("scancel {b}"),
            wait("b"),
        ),
        (
            ExpectedJob("failed", "unknown", "exit", attempts=1),
            ExpectedJob(
                "cancelled",
                attempts=0,
                gpu_seconds=0.0,
                queue_wait_seconds="absent",
                closed=True,
                job_id="{b}",
            ),
        ),
    ),
    Situation(
        "a job that waits",
        "Submitted and not started: open, no attempt, no wait that has ended, no GPU-second.",
        (submit("a", "sleep 2", *HELD), poll()),
        (
            ExpectedJob(
                attempts=0, gpu_seconds=0.0, queue_wait_seconds="absent", queue="main", closed=False
            ),
        ),
    ),
    Situation(
        "a job that waits for GPUs",
        "The wait is from the submission to the start of the first run, by Slurm's clock.",
        (
            submit("a", "sleep 6", "-N2", "--gpus-per-node=8"),
            running("a"),
            submit("b", "sleep 1", "-N2", "--gpus-per-node=8"),
            wait("b"),
        ),
        (
            ExpectedJob("succeeded", gpu_seconds=(16,)),
            ExpectedJob(
                "succeeded", gpu_seconds=(16,), queue_wait_seconds="first_start", job_id="{b}"
            ),
        ),
        exclusive=True,
    ),
)
