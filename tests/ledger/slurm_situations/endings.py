"""How jobs end: by themselves, by people, by limits; each with Slurm's word and ours."""

from .scenario import (
    TRAINING,
    ExpectedJob,
    Situation,
    interrupt,
    running,
    slurm,
    srun,
    submit,
    wait,
)

ENDLESS = "{train} --seconds 600"

SITUATIONS = (
    Situation(
        "an exception of the training loop",
        "Slurm says FAILED 1:0; the page knows the exception, so the class is the user's.",
        (
            submit("a", "srun {train} --seconds 2 --raise 'labels do not fit'", "--gpus=1"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "failed", "user", "exception", gpu_seconds=(1,), closed=True, disagreement=False
            ),
        ),
    ),
    Situation(
        "scancel of a running job",
        "The owner changes his mind: cancelled, and nobody failed, though ranks die of SIGTERM.",
        (submit("a", "srun " + ENDLESS, "--gpus=2"), *TRAINING, slurm("scancel {a}"), wait("a")),
        (ExpectedJob("cancelled", gpu_seconds=(2,), closed=True, disagreement=False),),
    ),
    Situation(
        "scancel of a lockstep run",
        "The launcher sees SIGTERM and cannot know by whom; Slurm's CANCELLED decides.",
        (
            submit(
                "a", "srun {lockstep} run --nproc-per-node 2 {script} --seconds 600", "--gpus=2"
            ),
            *TRAINING,
            slurm("scancel {a}"),
            wait("a"),
        ),
        (ExpectedJob("cancelled", gpu_seconds=(2,), closed=True),),
    ),
    Situation(
        "scancel of a job that never started",
        "It waits and is cancelled: no run, no GPU-second, no wait that ended, and no success.",
        (
            submit("a", "{train}", "--gpus=1", "--begin=now+1hour"),
            wait("a", "PENDING"),
            slurm("scancel {a}"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "cancelled", attempts=0, gpu_seconds=0.0, queue_wait_seconds="absent", closed=True
            ),
        ),
    ),
    Situation(
        "scancel of a step",
        "One step is cancelled and the script goes on to exit 0: the job is COMPLETED.",
        (
            submit("a", "srun sleep 60; sleep 1; exit 0", "--gpus=1"),
            running("a"),
            slurm("until squeue -hs -j {a} -o %i | grep '[.]0$'; do sleep 0.3; done"),
            slurm("scancel {a}.0; true"),
            wait("a"),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(1,), closed=True),),
    ),
    Situation(
        "Ctrl-C twice at srun",
        "srun ends its job by itself; the user did it, so it is a cancel in our word whatever "
        "Slurm's is.",
        (srun("a", ENDLESS, "--gpus=1"), *TRAINING, interrupt("a"), wait("a")),
        (ExpectedJob("cancelled", gpu_seconds=(1,), closed=True),),
    ),
    Situation(
        "a rank that is killed takes the others down",
        "Rank 1 ends by SIGKILL, srun ends the rest: one failure, of rank 1.",
        (
            srun(
                "a",
                "sh -c '[ $SLURM_PROCID = 1 ] && kill -KILL $$; {train} --seconds 30'",
                "-n2",
                "--gpus=2",
                "--kill-on-bad-exit=1",
            ),
            wait("a"),
        ),
        (ExpectedJob("failed", "unknown", gpu_seconds=(2,), closed=True),),
    ),
    Situation(
        "a time limit in sbatch",
        "A minute is the least limit; Slurm sends SIGTERM, KillWait later SIGKILL, and says "
        "TIMEOUT.",
        (submit("a", "srun " + ENDLESS, "--gpus=2", "--time=1"), wait("a")),
        (ExpectedJob("time_limit", gpu_seconds=(2,), closed=True, disagreement=False),),
    ),
    Situation(
        "a deadline that cannot be met",
        "Slurm takes the job out of the queue: DEADLINE with no start; no run is made up.",
        (
            submit("a", "{train}", "--gpus=1", "--time=1", "--begin=now+30", "--deadline=now+60"),
            wait("a"),
        ),
        (ExpectedJob(attempts=0, gpu_seconds=0.0, queue_wait_seconds="absent", closed=True),),
    ),
)
