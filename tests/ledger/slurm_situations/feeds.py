"""Polls, outages of feed, ledger and daemons, and what a site does not have."""

from .accounting import utc
from .scenario import (
    TRAINING,
    ExpectedJob,
    ExpectedText,
    Situation,
    accounting_sql,
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

DAY = utc("2026-11-02T00:00:00")
ENDED = ExpectedJob("succeeded", gpu_seconds=(1,), queue_wait_seconds="first_start", closed=True)
SHORT = submit("a", "sleep 3", "--gpus=1")
UNTIL_LET_GO = submit("a", "until [ -e {out} ]; do sleep 0.2; done", "--gpus=1")
LET_GO = slurm("touch {out}")
METRICS = "curl --silent http://{ledger}/metrics"


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
        "a job is gone from accounting",
        "slurmdbd purged what was heard running (PurgeJobAfter): no end is made up, and the "
        "feed says which job it cannot find.",
        (
            UNTIL_LET_GO,
            running("a"),
            poll(),
            stop("feed"),
            LET_GO,
            wait("a"),
            accounting_sql("delete from lab_job_table where id_job = {a}"),
            start("feed"),
            poll(),
        ),
        (ExpectedJob(attempts=1), ExpectedText("", contains=("{a}",), status=None)),
    ),
    Situation(
        "a second poll sends nothing twice",
        "Between two polls nothing happened: no event is sent again, no dead letter, no second "
        "count.",
        (SHORT, wait("a"), poll(), poll(), poll()),
        (ENDED, ExpectedText("{lockstep} ledger dead-letters", lacks=("{a}",), status=None)),
    ),
    Situation(
        "the feed is behind",
        "While slurmdbd is down, the age of the last good answer grows in a metric; an alert's "
        "rule reads it.",
        (stop("slurmdbd"), pause(8), start("slurmdbd"), poll()),
        (
            ExpectedText(METRICS, contains=("feed",)),
            ExpectedText("{lockstep} alerts list", contains=("Feed",), status=None),
        ),
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
        "the feed is away for days",
        "A job was heard running; it ended eight days before the feed came back and is asked "
        "for by its id.",
        (
            stop("feed"),
            UNTIL_LET_GO,
            running("a"),
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
        (ExpectedJob("succeeded", attempts=1, closed=True),),
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
        "no slurmdbd at all",
        "accounting_storage/none: the feed says in one sentence that accounting is missing and "
        "ends with 2.",
        (),
        (
            ExpectedText(
                "{lockstep} ledger follow slurm {feed_options}",
                ("accounting",),
                ("Traceback",),
                status=2,
            ),
        ),
        conf="AccountingStorageType=accounting_storage/none",
    ),
    Situation(
        "no sacct on the machine",
        "The feed runs where Slurm's programs are not: one sentence names the program.",
        (),
        (
            ExpectedText(
                "env PATH={empty} {lockstep} ledger follow slurm {feed_options}",
                ("sacct",),
                ("Traceback",),
                status=2,
            ),
        ),
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
    Situation(
        "an old systemd",
        "systemd 247 knows no %d: the unit that is written for it has none, or the command says"
        " from which version on.",
        (),
        (
            ExpectedText(
                "{lockstep} deploy systemd --to {out} --systemd 247 && ! grep -rF '%d' {out}",
                lacks=("Traceback",),
            ),
        ),
    ),
)
