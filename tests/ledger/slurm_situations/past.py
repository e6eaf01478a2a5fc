"""Accounting of the past: endings, texts of users, and time zones."""

from typing import Any, Literal

from .accounting import Row, utc
from .scenario import (
    Action,
    ExpectedAbsence,
    ExpectedJob,
    FailureClass,
    Outcome,
    Situation,
    account,
    feed,
    poll,
    submit,
    wait,
)

DAY = utc("2026-11-02T00:00:00")
FORGED = (
    "x|y\n900001|900001|evil|COMPLETED|0:0"
    "|2026-11-01T00:00:00|2026-11-01T00:00:01|2026-11-01T09:00:00"
)
FROM = ("--since", "2026-11-01")
LIVE = (submit("a", "sleep 3", "--gpus=1"), wait("a"), poll())
EXPECTED_LIVE = (
    ExpectedJob("succeeded", gpu_seconds=(1,), queue_wait_seconds="first_start", closed=True),
)


def _history(zone: str, *rows: Row) -> tuple[Action, ...]:
    return (account(*rows), feed(f"TZ={zone}", "--since", "2026-03-01"), poll())


def _ended(
    number: int,
    wait_seconds: Literal["absent"] | float,
    outcome: Outcome,
    failure_class: FailureClass | None = None,
    cause: str | None = None,
    **fields: Any,
) -> ExpectedJob:
    """The record of a job of the past: closed, with one run of 100 s on 8 GPUs."""
    plain: dict[str, Any] = {"attempts": 1, "gpu_seconds": 800.0, "closed": True}
    return ExpectedJob(
        outcome, failure_class, cause, queue_wait_seconds=wait_seconds, job_id=str(number),
        **plain | fields,
    )  # fmt: skip


def _live(zone: str, why: str) -> Situation:
    return Situation(f"a feed in {zone}", why, (feed(f"TZ={zone}"), *LIVE), EXPECTED_LIVE)


AUTUMN = utc("2026-10-25T00:00:00")  # Berlin: 03:00 CEST becomes 02:00 CET at 01:00 UTC
SPRING = utc("2026-03-29T00:00:00")  # Berlin: 02:00 CET becomes 03:00 CEST at 01:00 UTC
NEW_YORK = utc("2026-11-01T05:00:00")  # 02:00 EDT becomes 01:00 EST at 06:00 UTC

SITUATIONS = (
    Situation(
        "history of every ending",
        "Accounting of last month by numbers: each state of Slurm is one outcome, GPU-seconds "
        "are GPUs times run time.",
        (
            account(
                Row(910001, DAY, DAY + 10, DAY + 110, "COMPLETED"),
                Row(910002, DAY, DAY + 20, DAY + 120, "FAILED", exit_code=256),
                Row(910003, DAY, DAY + 30, DAY + 130, "TIMEOUT"),
                Row(910004, DAY, DAY + 40, DAY + 140, "NODE_FAIL"),
                Row(910005, DAY, DAY + 50, DAY + 150, "OUT_OF_MEMORY", exit_code=125),
                Row(910006, DAY, 0, DAY + 60, "CANCELLED"),
                Row(910007, DAY, DAY + 5, DAY + 105, "FAILED", exit_code=75 << 8),
                Row(910008, DAY, DAY + 5, DAY + 105, "BOOT_FAIL"),
            ),
            feed(*FROM),
            poll(),
        ),
        (
            _ended(910001, 10.0, "succeeded"),
            _ended(910002, 20.0, "failed", "unknown", "exit"),
            _ended(910003, 30.0, "time_limit"),
            _ended(910004, 40.0, "failed", "infra", "node_failure"),
            _ended(910005, 50.0, "failed", "user", "host_oom"),
            _ended(910006, "absent", "cancelled", attempts=0, gpu_seconds=0.0),
            _ended(910007, 5.0, "preempted", closed=None),
            _ended(910008, 5.0, "failed", "infra", "node_failure"),
        ),
    ),
    Situation(
        "history of a requeue",
        "Three rows of one id, in the order of accounting: two NODE_FAIL, then COMPLETED.",
        (
            account(
                Row(910020, DAY, DAY + 10, DAY + 110, "NODE_FAIL", num_nodes=2, gpus=16),
                Row(910020, DAY + 110, DAY + 130, DAY + 190, "NODE_FAIL", num_nodes=2, gpus=16),
                Row(910020, DAY + 190, DAY + 200, DAY + 500, "COMPLETED", num_nodes=2, gpus=16),
            ),
            feed(*FROM),
            poll(),
        ),
        (_ended(910020, 10.0, "succeeded", attempts=3, gpu_seconds=16.0 * (100 + 60 + 300)),),
    ),
    _live(
        "America/New_York",
        "The unit of the feed inherits the head node's zone; records are not five hours off.",
    ),
    _live(
        "Pacific/Kiritimati", "Fourteen hours ahead: no end lies in the future, so none is refused."
    ),
    Situation(
        "the hour that is twice",
        "A run from 02:30 CEST to 02:30 CET took an hour, though sacct in Berlin prints the "
        "same time twice.",
        _history("Europe/Berlin", Row(930001, AUTUMN, AUTUMN + 1800, AUTUMN + 5400)),
        (_ended(930001, 1800.0, "succeeded", gpu_seconds=8 * 3600.0),),
        exclusive=True,
    ),
    Situation(
        "a requeue over the change",
        "The second run begins, by the wall, before the first one: the order is accounting's, "
        "the attempts are two.",
        _history(
            "Europe/Berlin",
            Row(930005, AUTUMN, AUTUMN + 3000, AUTUMN + 3540, "REQUEUED"),
            Row(930005, AUTUMN + 3540, AUTUMN + 3660, AUTUMN + 3960, "COMPLETED"),
        ),
        (_ended(930005, 3000.0, "succeeded", attempts=2, gpu_seconds=8 * (540.0 + 300.0)),),
        exclusive=True,
    ),
    Situation(
        "a name with pipes",
        "sacct does not quote: `a|b|c` stays a name and no column moves.",
        (submit("a", "sleep 1", "--job-name=a|b|c", "--gpus=1", "-A", "speech"), wait("a")),
        (ExpectedJob("succeeded", gpu_seconds=(1,), queue="main", project="speech", user="root"),),
    ),
    Situation(
        "a forged row in a name",
        "Any user can print a row of any other job into sacct's output; no record comes of it.",
        (submit("a", "sleep 1", f"--job-name={FORGED}", "--gpus=1"), wait("a")),
        (ExpectedJob("succeeded", gpu_seconds=(1,)), ExpectedAbsence("900001")),
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
        "control characters and other alphabets in a name",
        "Slurm stores them as they are; the event's rules on texts do not cost the record.",
        (
            submit("a", "sleep 1", "--job-name=gr\xf6\xdfe \u5b66\u7fd2\t\x1b[31m`,;", "--gpus=1"),
            wait("a"),
        ),
        (ExpectedJob("succeeded", gpu_seconds=(1,)),),
    ),
    Situation(
        "an unused GPU request of none",
        "Two tasks of a CPU array are none of the training jobs.",
        (
            submit("a", "sleep 1", "--array=1-2"),
            submit("b", "sleep 1", "--gpus=1"),
            wait("a"),
            wait("b"),
        ),
        (
            ExpectedAbsence("{a}_1"),
            ExpectedAbsence("{a}_2"),
            ExpectedAbsence("{a}"),
            ExpectedJob("succeeded", job_id="{b}"),
        ),
    ),
    Situation(
        "CPU jobs that import Lockstep",
        "A job without a GPU that has a page is watched all the same; the feed leaves it to its"
        " page and counts no GPU.",
        (submit("a", "{train} --seconds 15"), wait("a")),
        (ExpectedJob(attempts=1, gpu_seconds=0.0),),
    ),
)
