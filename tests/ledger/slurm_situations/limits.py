"""Time limits, deadlines, and memory that a cgroup limits."""

from .scenario import ExpectedJob, Situation, srun, submit, wait

ENDLESS = "{train} --seconds 600"

SITUATIONS = (
    Situation(
        "a time limit in sbatch",
        "A minute is the least limit; Slurm sends SIGTERM, KillWait later SIGKILL, and says "
        "TIMEOUT.",
        (submit("a", "srun " + ENDLESS, "--gpus=2", "--time=1"), wait("a")),
        (
            ExpectedJob(
                "{a}", "time_limit", "user", "time_limit", 1, (2,), closed=True, disagreement=False
            ),
        ),
        ("show.limit", "6.limit", "why.words"),
    ),
    Situation(
        "a time limit of srun",
        "The ranks are ended by SIGTERM in the step; that is the limit's doing and no failure "
        "of a rank.",
        (srun("a", ENDLESS, "--gpus=1", "--time=1"), wait("a")),
        (
            ExpectedJob(
                "{a}", "time_limit", "user", "time_limit", 1, (1,), closed=True, disagreement=False
            ),
        ),
        ("show.limit", "6.limit"),
    ),
    Situation(
        "a warning before the time limit",
        "--signal asks the batch shell 30 s ahead; it saves and exits 75, Slurm says FAILED "
        "75:0: it gave way.",
        (
            submit(
                "a",
                "trap 'exit 75' USR1; sleep 600 & wait",
                "--gpus=1",
                "--time=1",
                "--signal=B:USR1@30",
            ),
            wait("a"),
        ),
        (ExpectedJob("{a}", "preempted", "", "preemption", 1, (1,)),),
        ("6.signal",),
    ),
    Situation(
        "ranks that save on the warning",
        "--signal reaches the step's ranks; they save, exit 75, and Slurm's FAILED beside our "
        "word is told.",
        (
            submit(
                "a",
                "srun {train} --seconds 600 --give-way-on USR1",
                "--gpus=1",
                "--time=1",
                "--signal=USR1@30",
            ),
            wait("a"),
        ),
        (ExpectedJob("{a}", "preempted", "", "preemption", 1, (1,), disagreement=True),),
        ("6.signal", "show.agree"),
    ),
    Situation(
        "out of memory in a step",
        "The cgroup ends the rank; Slurm says OUT_OF_MEMORY of the step (0:125) and FAILED of "
        "the script.",
        (
            submit("a", "srun {train} --seconds 2 --megabytes 600", "--mem=300", "--gpus=1"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}", "failed", "user", "host_oom", 1, (1,), closed=True, disagreement=False
            ),
        ),
        ("show.oom", "6.oom"),
        cgroup=True,
    ),
    Situation(
        "out of memory of srun",
        "Without a script the job itself is OUT_OF_MEMORY.",
        (srun("a", "{train} --seconds 2 --megabytes 600", "--mem=300", "--gpus=1"), wait("a")),
        (
            ExpectedJob(
                "{a}", "failed", "user", "host_oom", 1, (1,), closed=True, disagreement=False
            ),
        ),
        ("show.oom", "6.oom"),
        cgroup=True,
    ),
    Situation(
        "out of memory in a child that the script survives",
        "A loader's child is killed, the script exits 0: Slurm still says OUT_OF_MEMORY, and "
        "our word is told beside it.",
        (
            submit("a", "python3 -c 'x = bytearray(600 << 20)'; exit 0", "--mem=300", "--gpus=1"),
            wait("a"),
        ),
        (ExpectedJob("{a}", attempts=1, gpu_seconds=(1,), closed=True),),
        ("6.oom",),
        cgroup=True,
    ),
    Situation(
        "a deadline that cannot be met",
        "Slurm takes the job out of the queue: DEADLINE with no start; no run is made up.",
        (
            submit("a", "{train}", "--gpus=1", "--time=1", "--begin=now+30", "--deadline=now+60"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}", attempts=0, gpu_seconds=0.0, queue_wait_seconds="absent", closed=True
            ),
        ),
        ("5.made_up", "why.never"),
    ),
)
