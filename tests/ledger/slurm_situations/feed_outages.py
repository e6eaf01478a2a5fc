"""Feed, ledger and Slurm's daemons stop and come back; every job has its true times."""

from .polls import ENDED, LET_GO, SHORT, UNTIL_LET_GO
from .scenario import (
    ExpectedJob,
    Situation,
    accounting_sql,
    pause,
    poll,
    slurm,
    start,
    stop,
    submit,
    wait,
)


def _outage(name: str, why: str, daemon: str) -> Situation:
    """A job runs when the daemon stops; it ends meanwhile, or as soon as Slurm can say so."""
    script = (
        UNTIL_LET_GO,
        wait("a", "RUNNING"),
        poll(),
        stop(daemon),
        LET_GO,
        pause(3),
        start(daemon),
        wait("a"),
        poll(),
    )
    return Situation(name, why, script, (ENDED,), ("5.restart", "why.ends"), exclusive=True)


SITUATIONS = (
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
        "a job begins and ends while slurmdbd is away",
        "slurmctld keeps both for slurmdbd; the record has the true times, not those of the "
        "return.",
        (stop("slurmdbd"), SHORT, pause(6), start("slurmdbd"), wait("a"), poll()),
        (ENDED,),
        ("5.restart", "5.made_up"),
        exclusive=True,
    ),
    Situation(
        "all of it restarts at once",
        "A reboot of the head node: ledger, feed, slurmctld and slurmdbd go and come in any order.",
        (
            UNTIL_LET_GO,
            wait("a", "RUNNING"),
            poll(),
            stop("feed"),
            stop("ledger"),
            stop("slurmctld"),
            stop("slurmdbd"),
            LET_GO,
            pause(2),
            start("slurmctld"),
            start("feed"),
            pause(3),
            start("slurmdbd"),
            start("ledger"),
            wait("a"),
            poll(),
        ),
        (ENDED,),
        ("5.restart", "why.ends"),
        exclusive=True,
    ),
    Situation(
        "the feed is away for days",
        "A job was heard running; it ended eight days before the feed came back and is asked "
        "for by its id.",
        (
            stop("feed"),
            UNTIL_LET_GO,
            wait("a", "RUNNING"),
            # A start never changes for who has heard of it.
            accounting_sql(
                "update lab_job_table set time_submit = time_submit - 864000, time_eligible = "
                "time_eligible - 864000, time_start = time_start - 864000 where id_job = {a}"
            ),
            start("feed"),
            poll(),
            stop("feed"),
            LET_GO,
            wait("a"),
            accounting_sql(
                "update lab_job_table set time_end = time_start + 90000 where id_job = {a}"
            ),
            start("feed"),
            poll(),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, closed=True),),
        ("why.days", "5.by_id"),
        exclusive=True,
    ),
    Situation(
        "many jobs end while the feed is away",
        "Sixteen tasks of an array were heard running; each has its end after the return.",
        (
            submit("a", str(UNTIL_LET_GO.arguments[1]), "--array=1-16", "--gpus=1"),
            wait("a", "RUNNING"),
            poll(),
            stop("feed"),
            LET_GO,
            wait("a"),
            start("feed"),
            poll(),
        ),
        tuple(
            ExpectedJob(f"{{a}}_{task}", "succeeded", "", attempts=1, gpu_seconds=(1,), closed=True)
            for task in range(1, 17)
        ),
        ("5.by_id", "1.array"),
        exclusive=True,
    ),
    Situation(
        "a waiting job is cancelled while the feed is away",
        "It never became eligible, so that sacct lists it by id alone.",
        (
            submit("a", "sleep 1", "--gpus=1", "--begin=now+1hour"),
            wait("a", "PENDING"),
            poll(),
            stop("feed"),
            slurm("scancel {a}"),
            wait("a"),
            start("feed"),
            poll(),
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
        ("5.by_id", "why.never"),
        exclusive=True,
    ),
    Situation(
        "a requeue while the feed is away",
        "Both runs ended meanwhile; each row of --duplicates is a run.",
        (
            submit(
                "a", '[ -n "$SLURM_RESTART_COUNT" ] || sleep 600; sleep 1', "--requeue", "--gpus=1"
            ),
            wait("a", "RUNNING"),
            poll(),
            stop("feed"),
            pause(2),
            slurm("scontrol requeue {a}"),
            wait("a"),
            start("feed"),
            poll(),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=2, gpu_seconds=(1, 1), closed=True),),
        ("5.by_id", "1.attempt"),
        exclusive=True,
    ),
)
