"""Requeues by hand: attempts of one job, whose time is lost once."""

from .scenario import ExpectedJob, Situation, pause, slurm, submit, wait, watch

# Runs for long at first, and for a second after a restart.
RESTARTED = "srun {train} --seconds 600 --until-restart 1"
SITUATIONS = (
    Situation(
        "requeued by hand",
        "The operator says scontrol requeue: one job, two attempts; Slurm's first row is "
        "REQUEUED, its second COMPLETED.",
        (
            submit("a", RESTARTED, "--requeue", "--gpus=2"),
            wait("a", "RUNNING"),
            watch("a"),
            slurm("scontrol requeue {a}"),
            wait("a"),
        ),
        (
            ExpectedJob(
                "{a}",
                "succeeded",
                "",
                "success",
                2,
                (2, 2),
                "first_start",
                closed=True,
                disagreement=False,
                lost_run=0,
            ),
        ),
        ("show.requeue", "6.requeue", "1.attempt", "why.requeue", "6.lost"),
    ),
    Situation(
        "requeued by hand without Lockstep",
        "Accounting alone has two rows of one id: one record, both runs' time, once.",
        (
            submit(
                "a", '[ -n "$SLURM_RESTART_COUNT" ] || sleep 600; sleep 2', "--requeue", "--gpus=2"
            ),
            wait("a", "RUNNING"),
            pause(3),
            slurm("scontrol requeue {a}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=2, gpu_seconds=(2, 2), closed=True),),
        ("why.requeue", "6.requeue"),
    ),
    Situation(
        "requeued twice",
        "Restart counts go on, 0, 1, 2.",
        (
            submit("a", "srun {train} --seconds 600 --until-restart 2", "--requeue", "--gpus=1"),
            wait("a", "RUNNING"),
            watch("a"),
            slurm("scontrol requeue {a}"),
            wait("a", "PENDING"),
            wait("a", "RUNNING"),
            watch("a"),
            slurm("scontrol requeue {a}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=3, gpu_seconds=(1, 1, 1), closed=True),),
        ("1.attempt",),
    ),
    Situation(
        "requeued and held",
        "requeuehold leaves it in the queue: one run so far, and the job is open.",
        (
            submit("a", RESTARTED, "--requeue", "--gpus=1"),
            wait("a", "RUNNING"),
            watch("a"),
            slurm("scontrol requeuehold {a}"),
            wait("a", "PENDING"),
        ),
        (ExpectedJob("{a}", attempts=1, gpu_seconds=(1,), closed=False, lost_run=0),),
        ("6.requeue",),
    ),
    Situation(
        "requeued, held and cancelled",
        "The second wait ends in scancel: no second run is made up, and the end is a cancel.",
        (
            submit("a", RESTARTED, "--requeue", "--gpus=1"),
            wait("a", "RUNNING"),
            watch("a"),
            slurm("scontrol requeuehold {a}"),
            wait("a", "PENDING"),
            slurm("scancel {a}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "cancelled", "", attempts=1, gpu_seconds=(1, 0), closed=True),),
        ("5.made_up", "6.requeue"),
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
            wait("a_2", "RUNNING"),
            watch("a_2"),
            slurm("scontrol requeue {a}_2"),
            wait("a"),
        ),
        (
            ExpectedJob("{a}_1", "succeeded", "", attempts=1),
            ExpectedJob("{a}_2", "succeeded", "", attempts=2, gpu_seconds=(1, 1)),
        ),
        ("1.array", "1.attempt"),
    ),
    Situation(
        "a job requeues itself before its time limit",
        "The common recipe: --signal, save, scontrol requeue. Two attempts, nothing failed, "
        "one job.",
        (
            submit(
                "a",
                '[ -n "$SLURM_RESTART_COUNT" ] && exit 0; trap \'scontrol requeue '
                "$SLURM_JOB_ID; sleep 30' USR1;"
                " srun {train} --seconds 600 & wait",
                "--requeue",
                "--gpus=1",
                "--time=1",
                "--signal=B:USR1@30",
            ),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=2, gpu_seconds=(1, 1), closed=True),),
        ("6.signal", "6.requeue"),
    ),
    Situation(
        "a restart that ends well after a failure of the user",
        "Requeued once it fails by itself: two attempts, and the outcome is that of the last.",
        (
            submit(
                "a", '[ -n "$SLURM_RESTART_COUNT" ] && exit 1; sleep 600', "--requeue", "--gpus=1"
            ),
            wait("a", "RUNNING"),
            pause(2),
            slurm("scontrol requeue {a}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "failed", "unknown", "exit", 2, (1, 1), closed=True),),
        ("1.attempt",),
    ),
    Situation(
        "a suspended job",
        "Suspended and resumed it is one run of one job; a pause is no restart.",
        (
            submit("a", "sleep 6", "--gpus=1"),
            wait("a", "RUNNING"),
            slurm("scontrol suspend {a}"),
            pause(4),
            slurm("scontrol resume {a}"),
            wait("a"),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, closed=True),),
        ("1.attempt",),
    ),
)
