"""Preemption by a partition of a higher tier: attempts of one job, or its last word."""

from .scenario import ExpectedJob, ExpectedText, Situation, srun, submit, wait, watch

# Runs for long at first, and for a second after a restart.
RESTARTED = "srun {train} --seconds 600 --until-restart 1"
SITUATIONS = (
    Situation(
        "preempted by a higher partition",
        "PreemptMode=REQUEUE: PREEMPTED in accounting, ten seconds later it runs again; one "
        "job, two attempts.",
        (
            submit("a", RESTARTED, "--requeue", "-N2", "--gpus-per-node=8"),
            wait("a", "RUNNING"),
            watch("a"),
            submit("b", "sleep 3", "-p", "urgent", "-N1", "--gpus=8"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}",
                "succeeded",
                "",
                "success",
                2,
                (16, 16),
                "first_start",
                "main",
                closed=True,
                disagreement=False,
                lost_run=0,
            ),
            ExpectedJob(
                "{b}", "succeeded", "", attempts=1, gpu_seconds=(8,), queue="urgent", closed=True
            ),
        ),
        ("show.preempt", "6.preempt", "1.attempt", "6.lost"),
        exclusive=True,
    ),
    Situation(
        "preempted and still waiting",
        "While the other job holds its GPUs it is preempted, open, with one run.",
        (
            submit("a", RESTARTED, "--requeue", "-N2", "--gpus-per-node=8"),
            wait("a", "RUNNING"),
            watch("a"),
            submit("b", "sleep 600", "-p", "urgent", "-N2", "--gpus-per-node=8"),
            wait("b", "RUNNING"),
        ),
        (
            ExpectedJob("{a}", "preempted", "", "preemption", 1, (16,), closed=False, lost_run=0),
            ExpectedJob("{b}", closed=False, attempts=1, queue="urgent"),
        ),
        ("6.preempt",),
        exclusive=True,
    ),
    Situation(
        "preempted without requeue",
        "--no-requeue: PREEMPTED is its last word.",
        (
            submit("a", "srun {train} --seconds 600", "--no-requeue", "-N2", "--gpus-per-node=8"),
            wait("a", "RUNNING"),
            watch("a"),
            submit("b", "sleep 2", "-p", "urgent", "-N2", "--gpus-per-node=8"),
            wait("a"),
            wait("b"),
        ),
        (
            ExpectedJob("{a}", "preempted", "", "preemption", 1, (16,), disagreement=False),
            ExpectedJob("{b}", "succeeded", ""),
        ),
        ("6.preempt",),
        exclusive=True,
    ),
    Situation(
        "a preempted srun",
        "srun from a shell cannot be requeued; the ranks see SIGTERM, srun exits 143, and "
        "preemption is the cause.",
        (
            srun("a", "{train} --seconds 600", "-N2", "-n2", "--gpus-per-node=8"),
            wait("a", "RUNNING"),
            watch("a"),
            submit("b", "sleep 2", "-p", "urgent", "-N2", "--gpus-per-node=8"),
            wait("a"),
            wait("b"),
        ),
        (
            ExpectedJob("{a}", "preempted", "", "preemption", 1, (16,), disagreement=False),
            ExpectedJob("{b}", "succeeded", ""),
        ),
        ("6.preempt", "why.words"),
        exclusive=True,
    ),
    Situation(
        "preempted with grace",
        "GraceTime: SIGTERM first; the ranks save and exit 75 within it. Slurm says FAILED 75:0 "
        "and starts no job again that ends by itself in time: one run, which gave way.",
        (
            submit(
                "a",
                "srun {train} --seconds 600 --until-restart 1 --give-way-on TERM",
                "-p",
                "grace",
                "--requeue",
                "-N2",
                "--gpus-per-node=8",
            ),
            wait("a", "RUNNING"),
            watch("a"),
            submit("b", "sleep 2", "-p", "urgent", "-N2", "--gpus-per-node=8"),
            wait("a"),
        ),
        (
            ExpectedJob("{a}", "preempted", "", "preemption", 1, (16,), queue="grace", closed=True),
            ExpectedJob("{b}", "succeeded", "", attempts=1, gpu_seconds=(16,)),
        ),
        ("6.grace", "6.preempt"),
        exclusive=True,
    ),
    Situation(
        "the report of a preempted job",
        "Page and first line say preempted, as the ledger does.",
        (
            submit("a", "srun {train} --seconds 600", "--no-requeue", "-N2", "--gpus-per-node=8"),
            wait("a", "RUNNING"),
            watch("a"),
            submit("b", "sleep 1", "-p", "urgent", "-N2", "--gpus-per-node=8"),
            wait("a"),
        ),
        (
            ExpectedJob("{a}", "preempted", ""),
            ExpectedJob("{b}", "succeeded"),
            ExpectedText("{lockstep} report {a}", ("preempted",), node="{n1}"),
        ),
        ("6.lost",),
        exclusive=True,
    ),
)
