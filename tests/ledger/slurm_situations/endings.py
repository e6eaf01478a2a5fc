"""How jobs end: each with Slurm's word, ours beside it, one end and its GPU-seconds."""

from .scenario import (
    ExpectedJob,
    ExpectedText,
    Situation,
    interrupt,
    pause,
    slurm,
    srun,
    submit,
    wait,
    watch,
)

ENDLESS = "{train} --seconds 600"

SITUATIONS = (
    Situation(
        "exit 1 without a word",
        "The script ends with status 1 and tells nothing: failed, and nobody can say whose fault.",
        (submit("a", "{train} --seconds 2 --exit 1", "--gpus=1"), wait("a")),
        (
            ExpectedJob(
                "{a}", "failed", "unknown", "exit", 1, (1,), closed=True, disagreement=False
            ),
        ),
        ("show.exit1",),
    ),
    Situation(
        "exit 1 without Lockstep",
        "The same of a script that imports nothing has the same record.",
        (submit("a", "sleep 2; exit 1", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", "failed", "unknown", "exit", 1, (1,), closed=True),),
        ("show.exit1",),
    ),
    Situation(
        "an exception of the training loop",
        "Slurm says FAILED 1:0; the page knows the exception, so the class is the user's.",
        (
            submit("a", "srun {train} --seconds 2 --raise 'labels do not fit'", "--gpus=1"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}", "failed", "user", "exception", 1, (1,), closed=True, disagreement=False
            ),
        ),
        ("show.agree",),
    ),
    Situation(
        "a segmentation fault",
        "Accounting says FAILED 0:11 of a batch script that a signal ends.",
        (submit("a", "sleep 1; kill -SEGV $$", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", "failed", "unknown", "segfault", 1, (1,), closed=True),),
        ("show.agree",),
    ),
    Situation(
        "a kill of unknown origin",
        "SIGKILL by somebody on the node is FAILED 0:9, which is neither an out of memory nor "
        "a cancel.",
        (submit("a", "sleep 2; kill -KILL $$", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", "failed", "unknown", "killed", 1, (1,), closed=True),),
        ("show.agree",),
    ),
    Situation(
        "scancel of a running job",
        "The owner changes his mind: cancelled, and nobody failed, though ranks die of SIGTERM.",
        (
            submit("a", "srun " + ENDLESS, "--gpus=2"),
            wait("a", "RUNNING"),
            watch("a"),
            slurm("scancel {a}"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}", "cancelled", "", "cancelled", 1, (2,), closed=True, disagreement=False
            ),
        ),
        ("show.scancel", "6.cancel", "why.words"),
    ),
    Situation(
        "scancel of a lockstep run",
        "The launcher sees SIGTERM and cannot know by whom; Slurm's CANCELLED decides.",
        (
            submit(
                "a", "srun {lockstep} run --nproc-per-node 2 {script} --seconds 600", "--gpus=2"
            ),
            wait("a", "RUNNING"),
            watch("a"),
            slurm("scancel {a}"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}", "cancelled", "", "cancelled", 1, (2,), closed=True, disagreement=False
            ),
        ),
        ("show.scancel", "6.cancel"),
    ),
    Situation(
        "scancel of a job that ignores SIGTERM",
        "KillWait passes and SIGKILL ends it; the end is Slurm's, and still a cancel and no kill.",
        (
            submit("a", "trap '' TERM; sleep 60", "--gpus=1"),
            wait("a", "RUNNING"),
            pause(2),
            slurm("scancel {a}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "cancelled", "", "cancelled", 1, (1,), closed=True),),
        ("6.cancel",),
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
                "{a}",
                "cancelled",
                "",
                attempts=0,
                gpu_seconds=0.0,
                queue_wait_seconds="absent",
                closed=True,
            ),
        ),
        ("why.never", "5.made_up", "6.cancel"),
    ),
    Situation(
        "scancel of a step",
        "One step is cancelled and the script goes on to exit 0: the job is COMPLETED.",
        (
            submit("a", "srun sleep 60; sleep 1; exit 0", "--gpus=1"),
            wait("a", "RUNNING"),
            slurm("until squeue -hs -j {a} -o %i | grep '[.]0$'; do sleep 0.3; done"),
            slurm("scancel {a}.0; true"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, gpu_seconds=(1,), closed=True),),
        ("1.step",),
    ),
    Situation(
        "a failed step in a script that goes on",
        "Slurm says COMPLETED 0:0 with a derived exit code of 3:0: the record has both.",
        (submit("a", "srun {train} --seconds 2 --exit 3; sleep 3; exit 0", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", attempts=1, gpu_seconds=(1,), closed=True, disagreement=True),),
        ("show.agree",),
    ),
    Situation(
        "Ctrl-C twice at srun",
        "srun ends its job by itself; the user did it, so it is a cancel in our word whatever "
        "Slurm's is.",
        (
            srun("a", ENDLESS, "--gpus=1"),
            wait("a", "RUNNING"),
            watch("a"),
            interrupt("a"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "cancelled", "", attempts=1, gpu_seconds=(1,), closed=True),),
        ("6.cancel",),
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
        (ExpectedJob("{a}", "failed", "unknown", attempts=1, gpu_seconds=(2,), closed=True),),
        ("show.agree",),
    ),
    Situation(
        "one of two nodes fails in user code",
        "The rank of node 2 raises; the nodes' ends are one end of one job.",
        (
            srun(
                "a",
                "{train} --seconds 3 --exit 1 --failing-rank 1",
                "-N2",
                "-n2",
                "--gpus-per-node=1",
            ),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}", "failed", attempts=1, gpu_seconds=(2,), closed=True, disagreement=False
            ),
        ),
        ("show.exit1",),
    ),
    Situation(
        "the report's first line of a cancel",
        "Who opens the report of a cancelled job reads so first, not that nobody was slow.",
        (
            submit("a", "srun " + ENDLESS, "--gpus=1"),
            wait("a", "RUNNING"),
            watch("a"),
            slurm("scancel {a}"),
            wait("a"),
        ),
        (
            ExpectedJob("{a}", "cancelled", ""),
            ExpectedText("{lockstep} report {a}", ("cancelled",), node="{n1}"),
        ),
        ("6.lost", "6.cancel"),
    ),
)
