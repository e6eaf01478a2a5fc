"""Requeues, preemptions and failed nodes: attempts of one job, whose time is lost once."""

from .scenario import (
    TRAINING,
    ExpectedJob,
    Situation,
    crash,
    pause,
    running,
    slurm,
    start,
    stop,
    submit,
    wait,
    watch,
)

RESTARTED = "srun {train} --seconds 600 --until-restart 1"

SITUATIONS = (
    Situation(
        "requeued twice",
        "Restart counts go on, 0, 1, 2.",
        (
            submit("a", "srun {train} --seconds 600 --until-restart 2", "--requeue", "--gpus=1"),
            *TRAINING,
            slurm("scontrol requeue {a}"),
            wait("a", "PENDING"),
            *TRAINING,
            slurm("scontrol requeue {a}"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "succeeded",
                gpu_seconds=(1, 1, 1),
                queue_wait_seconds="first_start",
                closed=True,
                disagreement=False,
                lost_run=0,
            ),
        ),
    ),
    Situation(
        "requeued, held and cancelled",
        "The second wait ends in scancel: no second run is made up, and the end is a cancel.",
        (
            submit("a", RESTARTED, "--requeue", "--gpus=1"),
            *TRAINING,
            slurm("scontrol requeuehold {a}"),
            wait("a", "PENDING"),
            slurm("scancel {a}"),
            wait("a"),
        ),
        (ExpectedJob("cancelled", attempts=1, gpu_seconds=(1, 0), closed=True),),
    ),
    Situation(
        "an array's task requeued by hand",
        "Only task 2 starts again; task 1 keeps its one attempt.",
        (
            submit(
                "a",
                "[ $SLURM_ARRAY_TASK_ID = 1 ] || " + RESTARTED + "; sleep 2",
                "--array=1-2",
                "--requeue",
                "--gpus=1",
            ),
            running("a_2"),
            watch("a_2"),
            slurm("scontrol requeue {a}_2"),
            wait("a"),
        ),
        (
            ExpectedJob("succeeded", attempts=1, job_id="{a}_1"),
            ExpectedJob("succeeded", gpu_seconds=(1, 1), job_id="{a}_2"),
        ),
    ),
    Situation(
        "a job requeues itself before its time limit",
        "The common recipe: --signal, save, scontrol requeue. Two attempts, nothing failed, one"
        " job.",
        (
            submit(
                "a",
                '[ -n "$SLURM_RESTART_COUNT" ] && exit 0; trap \'scontrol requeue $SLURM_JOB_ID;'
                " sleep 30' USR1; srun {train} --seconds 600 & wait",
                "--requeue",
                "--gpus=1",
                "--time=1",
                "--signal=B:USR1@30",
            ),
            wait("a"),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(1, 1), closed=True),),
    ),
    Situation(
        "a suspended job",
        "Suspended and resumed it is one run of one job; a pause is no restart.",
        (
            submit("a", "sleep 6", "--gpus=1"),
            running("a"),
            slurm("scontrol suspend {a}"),
            pause(4),
            slurm("scontrol resume {a}"),
            wait("a"),
        ),
        (ExpectedJob("succeeded", attempts=1, closed=True),),
    ),
    Situation(
        "preempted by a higher partition",
        "PreemptMode=REQUEUE: PREEMPTED in accounting, ten seconds later it runs again; one "
        "job, two attempts.",
        (
            submit("a", RESTARTED, "--requeue", "-N2", "--gpus-per-node=8"),
            *TRAINING,
            submit("b", "sleep 3", "-p", "urgent", "-N1", "--gpus=8"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "succeeded",
                gpu_seconds=(16, 16),
                queue_wait_seconds="first_start",
                queue="main",
                closed=True,
                disagreement=False,
                lost_run=0,
            ),
            ExpectedJob("succeeded", gpu_seconds=(8,), queue="urgent", closed=True, job_id="{b}"),
        ),
        exclusive=True,
    ),
    Situation(
        "preempted without requeue",
        "--no-requeue: PREEMPTED is its last word.",
        (
            submit("a", "srun {train} --seconds 600", "--no-requeue", "-N2", "--gpus-per-node=8"),
            *TRAINING,
            submit("b", "sleep 2", "-p", "urgent", "-N2", "--gpus-per-node=8"),
            wait("a"),
            wait("b"),
        ),
        (
            ExpectedJob("preempted", gpu_seconds=(16,), disagreement=False),
            ExpectedJob("succeeded", job_id="{b}"),
        ),
        exclusive=True,
    ),
    Situation(
        "preempted with grace",
        "GraceTime: SIGTERM first; the ranks save and exit 75 within it. Slurm says FAILED 75:0"
        " and starts no job again that ends by itself in time: one run, which gave way.",
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
            *TRAINING,
            submit("b", "sleep 2", "-p", "urgent", "-N2", "--gpus-per-node=8"),
            wait("a"),
        ),
        (
            ExpectedJob("preempted", gpu_seconds=(16,), queue="grace", closed=True),
            ExpectedJob("succeeded", gpu_seconds=(16,), job_id="{b}"),
        ),
        exclusive=True,
    ),
    Situation(
        "a failed node, requeued",
        "The node dies with slurmd and ranks; Slurm says NODE_FAIL, requeues, and the second "
        "run completes: closed, two attempts.",
        (
            submit("a", RESTARTED, "--requeue", "-N2", "--gpus-per-node=1"),
            *TRAINING,
            crash("{n2}"),
            wait("a", "PENDING"),
            start("slurmd@{n2}"),
            wait("a"),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(2, 2), closed=True, lost_run=0),),
    ),
    Situation(
        "a failed node, not requeued",
        "--no-requeue: failed by the infrastructure, on both nodes once.",
        (
            submit("a", "srun {train} --seconds 600", "--no-requeue", "-N2", "--gpus-per-node=1"),
            *TRAINING,
            crash("{n2}"),
            wait("a"),
            start("slurmd@{n2}"),
        ),
        (
            ExpectedJob(
                "failed", "infra", "node_failure", gpu_seconds=(2,), closed=True, disagreement=False
            ),
        ),
    ),
    Situation(
        "a job that goes on without a lost node",
        "--no-kill: a change of size, no run and no requeue; the node counts until Slurm took it.",
        (
            submit("a", "sleep 70", "--no-kill", "-N2", "--gpus-per-node=8"),
            running("a"),
            crash("{n2}"),
            wait("a"),
            start("slurmd@{n2}"),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(16, 8), attempts=1, disagreement=False),),
    ),
    Situation(
        "slurmd stopped for a while",
        "An upgrade of slurmd leaves the ranks alone and returns in time: one attempt, no failure.",
        (
            submit("a", "srun {train} --seconds 12", "-w", "{n2}", "--gpus=1"),
            *TRAINING,
            stop("slurmd@{n2}"),
            pause(3),
            start("slurmd@{n2}"),
            wait("a"),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(1,), closed=True, disagreement=False),),
    ),
)
