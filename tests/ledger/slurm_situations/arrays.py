"""Parts of jobs: tasks of arrays, components of heterogeneous jobs, and steps, which are none."""

from .scenario import ExpectedJob, Situation, submit, wait

BOTH = ("{n1}", "{n2}")
TORCHRUN = "torchrun --nproc-per-node 2 {script}"

SITUATIONS = (
    Situation(
        "three steps in a batch script",
        "Three sruns one after the other are three steps of one job, with one start and one end.",
        (submit("a", "for i in 1 2 3; do srun {train} --seconds 2; done", "--gpus=1"), wait("a")),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, gpu_seconds=(1,), closed=True),),
        ("1.step", "why.ids"),
    ),
    Situation(
        "two steps at a time",
        "Training and its evaluation share an allocation; two steps of one job do not make two "
        "jobs.",
        (
            submit(
                "a",
                "srun --exact -n1 --gpus=1 {train} & srun --exact -n1 --gpus=1 {train} & wait",
                "-n2",
                "--gpus=2",
            ),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, gpu_seconds=(2,), closed=True),),
        ("1.step",),
    ),
    Situation(
        "lockstep run on two nodes",
        "Each node's launcher takes the allocation's id instead of inventing one.",
        (
            submit(
                "a",
                "srun {lockstep} run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d"
                " --rdzv-endpoint {n1}:{port} {script}",
                "-N2",
                "--ntasks-per-node=1",
                "--gpus-per-node=1",
            ),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}",
                "succeeded",
                "",
                "success",
                1,
                (2,),
                "first_start",
                "main",
                closed=True,
                disagreement=False,
                watched_on=BOTH,
            ),
        ),
        ("show.two", "1.run", "1.id", "why.ids"),
    ),
    Situation(
        "lockstep run in the batch script",
        "Without srun the launcher is a child of the batch step, and still inside the allocation.",
        (submit("a", "{lockstep} run --nproc-per-node 2 {script}", "--gpus=2"), wait("a")),
        (
            ExpectedJob(
                "{a}",
                "succeeded",
                "",
                attempts=1,
                gpu_seconds=(2,),
                closed=True,
                watched_on=("{n1}",),
            ),
        ),
        ("1.run",),
    ),
    Situation(
        "an array of three tasks",
        "sacct's raw id of the last task is the array's own number, which must not become a "
        "fourth job.",
        (submit("a", "{train} --seconds 2", "--array=1-3", "--gpus=1"), wait("a")),
        tuple(
            ExpectedJob(f"{{a}}_{task}", "succeeded", "", attempts=1, gpu_seconds=(1,), closed=True)
            for task in (1, 2, 3)
        ),
        ("show.array", "1.array"),
    ),
    Situation(
        "an array of which one task fails",
        "Tasks are jobs of their own: the failure of 2 is not that of 1 and 3.",
        (
            submit(
                "a",
                "{train} --seconds 2 --exit $((SLURM_ARRAY_TASK_ID == 2))",
                "--array=1-3%2",
                "--gpus=1",
            ),
            wait("a"),
        ),
        (
            ExpectedJob("{a}_1", "succeeded", ""),
            ExpectedJob(
                "{a}_2", "failed", attempts=1, gpu_seconds=(1,), closed=True, disagreement=False
            ),
            ExpectedJob("{a}_3", "succeeded", ""),
        ),
        ("1.array", "show.array"),
    ),
    Situation(
        "a heterogeneous job",
        "Slurm gives the second component a job id of its own (raw); sacct's word is 4242+1 "
        "and its GPUs are 2.",
        (
            submit(
                "a",
                "srun --het-group=0,1 {train} --seconds 3",
                "-N1",
                "--gres=gpu:1",
                ":",
                "-N1",
                "--gres=gpu:2",
            ),
            wait("a"),
        ),
        (
            ExpectedJob("{a}+0", "succeeded", "", attempts=1, gpu_seconds=(1,), closed=True),
            ExpectedJob("{a}+1", "succeeded", "", attempts=1, gpu_seconds=(2,), closed=True),
        ),
        ("show.het", "1.het"),
    ),
    Situation(
        "a job without Lockstep",
        "Most jobs of a cluster import nothing; accounting alone makes the same record.",
        (submit("a", "sleep 3", "--gpus=4"), wait("a")),
        (
            ExpectedJob(
                "{a}",
                "succeeded",
                "",
                attempts=1,
                gpu_seconds=(4,),
                queue_wait_seconds="first_start",
                closed=True,
                watched_on=(),
            ),
        ),
        ("show.agree",),
    ),
    Situation(
        "a step's own id is set by hand",
        "A site's wrapper exports LOCKSTEP_JOB_ID for years; inside an allocation the record "
        "still joins sacct's.",
        (
            submit("a", "LOCKSTEP_JOB_ID=$SLURM_JOB_ID srun {train} --seconds 3", "--gpus=1"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, gpu_seconds=(1,), closed=True),),
        ("1.id",),
    ),
)
