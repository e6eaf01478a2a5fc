"""Polls, outages of feed, ledger and daemons, zones, and texts of users."""

from .scenario import (
    TRAINING,
    ExpectedJob,
    ExpectedText,
    Situation,
    feed,
    on_node,
    pause,
    poll,
    running,
    slurm,
    start,
    stop,
    submit,
    wait,
)

ENDED = ExpectedJob("succeeded", gpu_seconds=(1,), queue_wait_seconds="first_start", closed=True)
SHORT = submit("a", "sleep 3", "--gpus=1")
UNTIL_LET_GO = submit("a", "until [ -e {out} ]; do sleep 0.2; done", "--gpus=1")
LET_GO = slurm("touch {out}")
TWO_HOURS_ON = """import json; p = "{deploy}/../feed.json"; state = json.load(open(p))
state["until"] += 7200; json.dump(state, open(p, "w"))"""


def _outage(name: str, why: str, daemon: str) -> Situation:
    """A job runs when the daemon stops; it ends meanwhile, or as soon as Slurm can say so."""
    script = (
        UNTIL_LET_GO,
        running("a"),
        poll(),
        stop(daemon),
        LET_GO,
        pause(3),
        start(daemon),
        wait("a"),
        poll(),
    )
    return Situation(name, why, script, (ENDED,))


SITUATIONS = (
    Situation(
        "a feed in Pacific/Kiritimati",
        "Fourteen hours ahead: no end lies in the future, so none is refused.",
        (feed("TZ=Pacific/Kiritimati"), SHORT, wait("a"), poll()),
        (ENDED,),
    ),
    Situation(
        "a forged row of a job that exists",
        "The name repeats the row of the neighbour with another end; the neighbour's record is "
        "accounting's.",
        (
            submit("victim", "sleep 2", "--gpus=1"),
            wait("victim"),
            submit(
                "a", "sleep 1", "--job-name=n\n{victim}|{victim}|FAILED|1:0|{victim}", "--gpus=1"
            ),
            wait("a"),
        ),
        (
            ExpectedJob("succeeded", gpu_seconds=(1,), disagreement=False, job_id="{victim}"),
            ExpectedJob("succeeded"),
        ),
    ),
    Situation(
        "CPU jobs that import Lockstep",
        "A job without a GPU that has a page is watched all the same; the feed leaves it to its"
        " page and counts no GPU.",
        (submit("a", "{train} --seconds 15"), wait("a")),
        (ExpectedJob(attempts=1, gpu_seconds=0.0),),
    ),
    Situation(
        "a job is requeued after it had completed",
        "scontrol requeue of a COMPLETED job turns its row into REQUEUED and moves its end to "
        "the moment of the requeue.",
        (
            submit("a", "sleep 1", "--requeue", "--gpus=1"),
            wait("a"),
            poll(),
            pause(3),
            slurm("scontrol requeue {a}"),
            wait("a"),
            poll(),
        ),
        (ExpectedJob("succeeded", attempts=2, closed=True),),
    ),
    _outage(
        "the ledger restarts",
        "The feed waits for the ledger and delivers what it could not.",
        "ledger",
    ),
    _outage(
        "slurmdbd restarts",
        "sacct fails with status 1; the feed waits, and slurmctld keeps the end for slurmdbd.",
        "slurmdbd",
    ),
    Situation(
        "slurmdbd is away for two hours",
        "The rows come two hours after the last poll, by the times that the feed remembers.",
        (
            UNTIL_LET_GO,
            running("a"),
            poll(),
            stop("slurmdbd"),
            LET_GO,
            pause(4),
            stop("feed"),
            slurm(f"python3 -c '{TWO_HOURS_ON}'"),
            start("slurmdbd"),
            start("feed"),
            wait("a"),
            poll(),
        ),
        (ENDED,),
    ),
    _outage(
        "the database restarts",
        "slurmdbd waits for MariaDB; sacct hangs or fails, the feed does not.",
        "mariadbd",
    ),
    _outage(
        "slurmctld restarts",
        "Job and accounting go on without it; the end is told when it is back.",
        "slurmctld",
    ),
    _outage(
        "the feed restarts",
        "It was not there at the end of the job, and tells it with Slurm's times.",
        "feed",
    ),
    Situation(
        "a requeue while the feed is away",
        "Both runs ended meanwhile; each row of --duplicates is a run.",
        (
            submit(
                "a", '[ -n "$SLURM_RESTART_COUNT" ] || sleep 600; sleep 1', "--requeue", "--gpus=1"
            ),
            running("a"),
            poll(),
            stop("feed"),
            pause(2),
            slurm("scontrol requeue {a}"),
            wait("a"),
            start("feed"),
            poll(),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(1, 1), closed=True),),
    ),
    Situation(
        "hidepid=2",
        "An agent that is not root sees no process of others: GPU attribution says so once, and"
        " the job is watched by its page.",
        (
            on_node("{n1}", "mount -o remount,hidepid=2 /proc"),
            submit("a", "srun {train} --seconds 10", "--gpus=1", "-w", "{n1}"),
            *TRAINING,
            wait("a"),
        ),
        (
            ExpectedJob("succeeded", attempts=1, watched_on=("{n1}",)),
            ExpectedText(
                "{lockstep} doctor --preflight", contains=("hidepid",), status=None, node="{n1}"
            ),
        ),
    ),
)
