"""One id, one job: arrays, components, steps and launchers."""

from .scenario import ExpectedJob, ExpectedText, Situation, srun, submit, wait

BOTH = ("{n1}", "{n2}")

SITUATIONS = (
    Situation(
        "plain srun",
        "Most people type this; the step 0 of the job is not the job, whose id has no dot.",
        (srun("a", "{train} --seconds 4", "--gpus-per-node=2", "-N1", "-n2"), wait("a")),
        (
            ExpectedJob(
                "succeeded",
                gpu_seconds=(2,),
                queue_wait_seconds="first_start",
                queue="main",
                project="root",
                user="root",
                closed=True,
                disagreement=False,
                watched_on=("{n1}",),
            ),
        ),
    ),
    Situation(
        "torchrun on two nodes by srun",
        "One agent of torchrun a node, as the tutorials show it; both nodes find the same id "
        "without talking.",
        (
            submit(
                "a",
                "srun torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d "
                "--rdzv-endpoint {n1}:{port} --rdzv-id any {script}",
                "-N2",
                "--ntasks-per-node=1",
                "--gpus-per-node=1",
            ),
            wait("a"),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(2,), closed=True, watched_on=BOTH),),
    ),
    Situation(
        "the report by Slurm's id",
        "Who has the id from squeue types it; the first line has Slurm's word, and times are "
        "those of the job.",
        (srun("a", "{train} --seconds 6", "--gpus=1"), wait("a")),
        (
            ExpectedJob("succeeded"),
            ExpectedText(
                "{lockstep} report {a}", contains=("{a}",), lacks=("not found",), node="{n1}"
            ),
            ExpectedText(
                "{lockstep} jobs", contains=("{a}",), lacks=("{a}.0", "local-"), node="{n1}"
            ),
        ),
    ),
    Situation(
        "three steps in a batch script",
        "Three sruns one after the other are three steps of one job, with one start and one end.",
        (submit("a", "for i in 1 2 3; do srun {train} --seconds 2; done", "--gpus=1"), wait("a")),
        (ExpectedJob("succeeded", gpu_seconds=(1,), closed=True),),
    ),
    Situation(
        "lockstep run on two nodes",
        "Each node's launcher takes the allocation's id instead of inventing one.",
        (
            submit(
                "a",
                "srun {lockstep} run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d "
                "--rdzv-endpoint {n1}:{port} {script}",
                "-N2",
                "--ntasks-per-node=1",
                "--gpus-per-node=1",
            ),
            wait("a"),
        ),
        (
            ExpectedJob(
                "succeeded",
                gpu_seconds=(2,),
                queue_wait_seconds="first_start",
                queue="main",
                closed=True,
                disagreement=False,
                watched_on=BOTH,
            ),
        ),
    ),
    Situation(
        "an array of three tasks",
        "sacct's raw id of the last task is the array's own number, which must not become a "
        "fourth job.",
        (submit("a", "{train} --seconds 2", "--array=1-3", "--gpus=1"), wait("a")),
        tuple(
            ExpectedJob("succeeded", gpu_seconds=(1,), closed=True, job_id=f"{{a}}_{task}")
            for task in (1, 2, 3)
        ),
    ),
    Situation(
        "a heterogeneous job",
        "Slurm gives the second component a job id of its own (raw); sacct's word is 4242+1 and"
        " its GPUs are 2.",
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
            ExpectedJob("succeeded", gpu_seconds=(1,), closed=True, job_id="{a}+0"),
            ExpectedJob("succeeded", gpu_seconds=(2,), closed=True, job_id="{a}+1"),
        ),
    ),
    Situation(
        "a job without Lockstep",
        "Most jobs of a cluster import nothing; accounting alone makes the same record.",
        (submit("a", "sleep 3", "--gpus=4"), wait("a")),
        (
            ExpectedJob(
                "succeeded",
                gpu_seconds=(4,),
                queue_wait_seconds="first_start",
                closed=True,
                watched_on=(),
            ),
        ),
    ),
)
