"""Polls one after the other: nothing twice, nothing passed over, nothing made up."""

from .accounting import AccountingRow, utc
from .scenario import (
    ExpectedJob,
    ExpectedText,
    Situation,
    account,
    accounting_sql,
    feed,
    pause,
    poll,
    slurm,
    start,
    stop,
    submit,
    wait,
)

DAY = utc("2026-11-02T00:00:00")
ENDED = ExpectedJob("{a}", "succeeded", "", "success", 1, (1,), "first_start", closed=True)
SHORT = submit("a", "sleep 3", "--gpus=1")
# Runs until it is let go, however slow the machine is.
UNTIL_LET_GO = submit("a", "until [ -e {out} ]; do sleep 0.2; done", "--gpus=1")
LET_GO = slurm("touch {out}")
METRICS = "curl --silent http://{ledger}/metrics"


SITUATIONS = (
    Situation(
        "a job is gone from accounting",
        "slurmdbd purged what was heard running (PurgeJobAfter): no end is made up, and the "
        "feed says which job it cannot find.",
        (
            UNTIL_LET_GO,
            wait("a", "RUNNING"),
            poll(),
            stop("feed"),
            LET_GO,
            wait("a"),
            accounting_sql("delete from lab_job_table where id_job = {a}"),
            start("feed"),
            poll(),
        ),
        (
            ExpectedJob("{a}", gpu_seconds=None, attempts=1),
            ExpectedText("", contains=("{a}",), status=None),
        ),
        ("5.made_up", "5.by_id"),
        exclusive=True,
    ),
    Situation(
        "a runaway job",
        "slurmctld lost the job and accounting says RUNNING for ever: the record stays open; "
        "it is not ended by us.",
        (
            account(AccountingRow(920_001, DAY, DAY + 10, 0, "RUNNING")),
            feed("--since", "2026-11-01"),
            poll(),
        ),
        (ExpectedJob("920001", queue_wait_seconds=10.0, attempts=1, closed=False),),
        ("5.made_up",),
        exclusive=True,
    ),
    Situation(
        "a second poll sends nothing twice",
        "Between two polls nothing happened: no event is sent again, no dead letter, no second "
        "count.",
        (SHORT, wait("a"), poll(), poll(), poll()),
        (ENDED, ExpectedText("{lockstep} ledger dead-letters", lacks=("{a}",), status=None)),
        ("5.next",),
    ),
    Situation(
        "a job ends between two polls",
        "Start and end are within one interval; the record has both.",
        (poll(), submit("a", "sleep 1", "--gpus=1"), wait("a"), poll()),
        (ENDED,),
        ("5.next",),
    ),
    Situation(
        "accounting arrives late",
        "A row enters accounting with times before the last poll, as slurmdbd's backlog brings "
        "it: it is not passed over.",
        (
            poll(),
            poll(),
            account(AccountingRow(920_010, DAY, DAY + 10, DAY + 110, "COMPLETED")),
            accounting_sql(
                "update lab_job_table set time_submit = unix_timestamp() - 120, time_eligible "
                "= unix_timestamp() - 120,"
                " time_start = unix_timestamp() - 110, time_end = unix_timestamp() - 10 where "
                "id_job = 920010"
            ),
            poll(),
        ),
        (
            ExpectedJob(
                "920010",
                "succeeded",
                "",
                attempts=1,
                gpu_seconds=800.0,
                queue_wait_seconds=10.0,
                closed=True,
            ),
        ),
        ("5.next",),
        exclusive=True,
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
        ("5.behind",),
        exclusive=True,
    ),
    Situation(
        "clock of the head node ahead of the database",
        "An end in the future of the ledger's clock is not refused for ever: the job ends once.",
        (
            SHORT,
            wait("a"),
            accounting_sql(
                "update lab_job_table set time_end = unix_timestamp() + 4 where id_job = {a}"
            ),
            pause(5),
            poll(),
        ),
        (ExpectedJob("{a}", "succeeded", "", attempts=1, closed=True),),
        ("5.made_up",),
        exclusive=True,
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
        (ExpectedJob("{a}", "succeeded", "", attempts=2, closed=True),),
        ("6.requeue", "1.attempt"),
    ),
)
