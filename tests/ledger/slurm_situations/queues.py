"""Queue, project, class and name: Slurm's later word wins."""

from .scenario import ExpectedJob, Situation, poll, running, slurm, submit, wait

HELD = ("--hold", "--gpus=1")

SITUATIONS = (
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
    Situation(
        "a job that gives a node away",
        "A change of size is neither run nor requeue, and each row counts with its own GPUs.",
        (
            submit("a", "sleep 9", "-N2", "--gpus-per-node=8"),
            running("a"),
            slurm("scontrol update jobid={a} NumNodes=1"),
            wait("a"),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(16, 8), attempts=1, disagreement=False),),
    ),
    Situation(
        "jobs that may not start yet",
        "What its owner asked for is no wait of the queue.",
        (
            submit("a", "sleep 2", "--gpus=1", "--begin=now+6"),
            submit("b", "sleep 2", "--gpus=1", "--dependency=afterok:{a}"),
            submit("c", "sleep 2", "--gpus=1", "--hold"),
            submit("d", "sleep 2", "--gpus=1", "--job-name=single{a}", "--dependency=singleton"),
            submit("e", "sleep 2", "--gpus=1", "--job-name=single{a}", "--dependency=singleton"),
            wait("b"),
            slurm("scontrol release {c}"),
            wait("c"),
            wait("e"),
        ),
        tuple(
            ExpectedJob("succeeded", gpu_seconds=(1,), queue_wait_seconds="first_start", job_id=job)
            for job in ("{a}", "{b}", "{c}", "{d}", "{e}")
        ),
    ),
    Situation(
        "a step that a signal ends in a job that succeeds",
        "Slurm says COMPLETED, and its step's status does not agree.",
        (submit("a", "srun sh -c 'kill -9 $$'; true", "--gpus=1"), wait("a")),
        (ExpectedJob("succeeded", gpu_seconds=(1,), disagreement=True),),
    ),
)
