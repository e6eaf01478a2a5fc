"""Queue, project, class and name: Slurm's later word wins."""

from .scenario import ExpectedJob, Situation, poll, slurm, submit, wait

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
        (ExpectedJob("{a}", "succeeded", "", attempts=1, queue="batch"),),
        ("why.queue", "5.later"),
    ),
    Situation(
        "the account is corrected while it waits",
        "The project that pays is the later one.",
        (
            submit("a", "sleep 2", *HELD, "-A", "vision"),
            poll(),
            slurm("scontrol update jobid={a} account=speech"),
            slurm("scontrol release {a}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", project="speech"),),
        ("5.later",),
    ),
    Situation(
        "renamed while it waits",
        "People find the job under its new name.",
        (
            submit("a", "sleep 2", *HELD, "--job-name=draft"),
            poll(),
            slurm("scontrol update jobid={a} name=final"),
            slurm("scontrol release {a}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", name="final"),),
        ("5.later",),
    ),
    Situation(
        "renamed while it runs",
        "What the page said at its start gives way to Slurm's later word.",
        (
            submit("a", "srun {train} --seconds 600 --until {out}", "--gpus=1", "-J", "draft"),
            wait("a", "RUNNING"),
            poll(),
            slurm("scontrol update jobid={a} name=final && touch {out}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", name="final", attempts=1, gpu_seconds=(1,)),),
        ("5.later",),
    ),
    Situation(
        "several partitions are asked for",
        "sbatch -p batch,main: the queue is the one in which it ran, not the list.",
        (submit("a", "sleep 2", "-p", "batch,main", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", "succeeded", "", queue="batch"),),
        ("5.later",),
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
            ExpectedJob("{a}", "succeeded", "", job_class="pretraining"),
            ExpectedJob("{b}", "succeeded", "", job_class="debug"),
        ),
        ("5.class",),
    ),
    Situation(
        "the QOS changes while it waits",
        "The later QOS is the class.",
        (
            submit("a", "sleep 1", *HELD, "--qos=debug"),
            poll(),
            slurm("scontrol update jobid={a} qos=pretraining"),
            slurm("scontrol release {a}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", job_class="pretraining"),),
        ("5.class", "5.later"),
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
            ExpectedJob("{a}", "failed", "unknown", "exit", 1),
            ExpectedJob(
                "{b}",
                "cancelled",
                "",
                attempts=0,
                gpu_seconds=0.0,
                queue_wait_seconds="absent",
                closed=True,
            ),
        ),
        ("5.made_up", "why.never"),
    ),
    Situation(
        "a job that waits",
        "Submitted and not started: open, no attempt, no wait that has ended, no GPU-second.",
        (submit("a", "sleep 2", *HELD), poll()),
        (
            ExpectedJob(
                "{a}",
                attempts=0,
                gpu_seconds=0.0,
                queue_wait_seconds="absent",
                queue="main",
                closed=False,
            ),
        ),
        ("5.made_up",),
    ),
    Situation(
        "a job that waits for GPUs",
        "The wait is from the submission to the start of the first run, by Slurm's clock.",
        (
            submit("a", "sleep 6", "-N2", "--gpus-per-node=8"),
            wait("a", "RUNNING"),
            submit("b", "sleep 1", "-N2", "--gpus-per-node=8"),
            wait("b"),
        ),
        (
            ExpectedJob("{a}", "succeeded", "", gpu_seconds=(16,)),
            ExpectedJob(
                "{b}", "succeeded", "", gpu_seconds=(16,), queue_wait_seconds="first_start"
            ),
        ),
        ("why.queue",),
        exclusive=True,
    ),
)
