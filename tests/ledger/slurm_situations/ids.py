"""One id: what Slurm calls a job is its name in pages, events, reports and metrics."""

from .scenario import ExpectedJob, ExpectedText, Situation, srun, submit, wait

BOTH = ("{n1}", "{n2}")
TORCHRUN = "torchrun --nproc-per-node 2 {script}"

SITUATIONS = (
    Situation(
        "plain srun",
        "Most people type this; the step 0 of the job is not the job, whose id has no dot.",
        (srun("a", "{train} --seconds 4", "--gpus-per-node=2", "-N1", "-n2"), wait("a")),
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
                "root",
                "root",
                closed=True,
                disagreement=False,
                watched_on=("{n1}",),
            ),
        ),
        ("why.ids", "1.id", "1.step", "show.srun", "show.agree"),
    ),
    Situation(
        "srun over two nodes",
        "Each node has its own page; GPU-seconds are those of the allocation and count once.",
        (
            srun("a", "{train} --seconds 4", "-N2", "--ntasks-per-node=2", "--gpus-per-node=2"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}", "succeeded", "", attempts=1, gpu_seconds=(4,), closed=True, watched_on=BOTH
            ),
        ),
        ("why.gpu", "1.id"),
    ),
    Situation(
        "python inside sbatch",
        "A script without srun has the allocation's variables all the same, so its page is the "
        "job's and not local-PID.",
        (submit("a", "{train} --seconds 4", "--gpus=1"), wait("a")),
        (
            ExpectedJob(
                "{a}",
                "succeeded",
                "",
                attempts=1,
                gpu_seconds=(1,),
                closed=True,
                watched_on=("{n1}",),
            ),
        ),
        ("1.id", "why.ids"),
    ),
    Situation(
        "torchrun inside sbatch",
        "torchrun sets its own run id; inside an allocation Slurm's id is the one that sacct "
        "knows.",
        (submit("a", TORCHRUN, "--gpus=2"), wait("a")),
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
        ("show.torchrun", "1.id"),
    ),
    Situation(
        "torchrun on two nodes by srun",
        "One agent of torchrun a node, as the tutorials show it; both nodes find the same id "
        "without talking.",
        (
            submit(
                "a",
                "srun torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d "
                "--rdzv-endpoint {n1}:{port}"
                " --rdzv-id any {script}",
                "-N2",
                "--ntasks-per-node=1",
                "--gpus-per-node=1",
            ),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}", "succeeded", "", attempts=1, gpu_seconds=(2,), closed=True, watched_on=BOTH
            ),
        ),
        ("show.torchrun", "1.id"),
    ),
    Situation(
        "the report by Slurm's id",
        "Who has the id from squeue types it; the first line has Slurm's word, and times are "
        "those of the job.",
        (srun("a", "{train} --seconds 6", "--gpus=1"), wait("a")),
        (
            ExpectedJob("{a}", "succeeded", ""),
            ExpectedText(
                "{lockstep} report {a}", contains=("{a}",), lacks=("not found",), node="{n1}"
            ),
            ExpectedText(
                "{lockstep} jobs", contains=("{a}",), lacks=("{a}.0", "local-"), node="{n1}"
            ),
        ),
        ("why.report", "why.table", "1.id"),
    ),
    Situation(
        "two users' jobs at once on a node",
        "Ids of Slurm differ, so neighbours on a node are never one job.",
        (
            submit("a", "{train} --seconds 4", "--gpus=1"),
            submit("b", "{train} --seconds 4", "--gpus=2", "-A", "vision"),
            wait("a"),
            wait("b"),
        ),
        (
            ExpectedJob("{a}", "succeeded", "", gpu_seconds=(1,), project="root"),
            ExpectedJob("{b}", "succeeded", "", gpu_seconds=(2,), project="vision"),
        ),
        ("1.id",),
    ),
)
