"""Nodes that fail, or whose slurmd stops."""

from .scenario import (
    ExpectedJob,
    Situation,
    crash,
    pause,
    slurm,
    srun,
    start,
    stop,
    submit,
    wait,
    watch,
)

# Runs for long at first, and for a second after a restart.
RESTARTED = "srun {train} --seconds 600 --until-restart 1"
SITUATIONS = (
    Situation(
        "a failed node, requeued",
        "The node dies with slurmd and ranks; Slurm says NODE_FAIL, requeues, and the second "
        "run completes: closed, two attempts.",
        (
            submit("a", RESTARTED, "--requeue", "-N2", "--gpus-per-node=1"),
            wait("a", "RUNNING"),
            watch("a"),
            crash("{n2}"),
            wait("a", "PENDING"),
            start("slurmd@{n2}"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}", "succeeded", "", attempts=2, gpu_seconds=(2, 2), closed=True, lost_run=0
            ),
        ),
        ("show.node", "6.node", "why.node_fail", "6.lost"),
        exclusive=True,
    ),
    Situation(
        "a failed node, not requeued",
        "--no-requeue: failed by the infrastructure, on both nodes once.",
        (
            submit("a", "srun {train} --seconds 600", "--no-requeue", "-N2", "--gpus-per-node=1"),
            wait("a", "RUNNING"),
            watch("a"),
            crash("{n2}"),
            wait("a"),
            start("slurmd@{n2}"),
        ),
        (
            ExpectedJob(
                "{a}", "failed", "infra", "node_failure", 1, (2,), closed=True, disagreement=False
            ),
        ),
        ("show.node", "6.node", "why.words"),
        exclusive=True,
    ),
    Situation(
        "a failed node under a plain srun",
        "srun exits with 0 on the failure of its only node; Slurm's NODE_FAIL is the truth.",
        (
            srun("a", "{train} --seconds 600", "-w", "{n2}", "--gpus=1"),
            wait("a", "RUNNING"),
            watch("a"),
            crash("{n2}"),
            wait("a"),
            start("slurmd@{n2}"),
        ),
        (ExpectedJob("{a}", "failed", "infra", "node_failure", 1, (1,), closed=True),),
        ("show.node", "6.node"),
        exclusive=True,
    ),
    Situation(
        "slurmd stopped for a while",
        "An upgrade of slurmd leaves the ranks alone and returns in time: one attempt, no failure.",
        (
            submit("a", "srun {train} --seconds 12", "-w", "{n2}", "--gpus=1"),
            wait("a", "RUNNING"),
            watch("a"),
            stop("slurmd@{n2}"),
            pause(3),
            start("slurmd@{n2}"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}",
                "succeeded",
                "",
                attempts=1,
                gpu_seconds=(1,),
                closed=True,
                disagreement=False,
            ),
        ),
        ("6.node",),
        exclusive=True,
    ),
    Situation(
        "slurmd stopped for good",
        "Slurm gives up the node while its ranks run on: the record has Slurm's NODE_FAIL, and "
        "what the page saw is told.",
        (
            submit("a", "srun {train} --seconds 600", "--no-requeue", "-w", "{n2}", "--gpus=1"),
            wait("a", "RUNNING"),
            watch("a"),
            stop("slurmd@{n2}"),
            wait("a"),
            start("slurmd@{n2}"),
        ),
        (ExpectedJob("{a}", "failed", "infra", "node_failure", 1, (1,), closed=True),),
        ("show.node", "6.node"),
        exclusive=True,
    ),
    Situation(
        "a node set down by the operator",
        "scontrol update state=down is NODE_FAIL for its jobs, at once.",
        (
            submit("a", RESTARTED, "--requeue", "-w", "{n2}", "--gpus=1"),
            wait("a", "RUNNING"),
            watch("a"),
            slurm("scontrol update nodename={n2} state=down reason=memory"),
            wait("a", "PENDING"),
            slurm("scontrol update nodename={n2} state=resume"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=2, gpu_seconds=(1, 1), closed=True),),
        ("6.node",),
        exclusive=True,
    ),
)
