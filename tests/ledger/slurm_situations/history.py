"""Accounting of the past: rows that nobody saw run, of every ending, and many."""

from .accounting import AccountingRow, many_rows_sql, utc
from .scenario import (
    ExpectedJob,
    ExpectedText,
    Situation,
    account,
    accounting_sql,
    feed,
    poll,
    slurm,
)

DAY = utc("2026-11-02T00:00:00")
FORGED = (
    "x|y\n900001|900001|evil|COMPLETED|0:0"
    "|2026-11-01T00:00:00|2026-11-01T00:00:01|2026-11-01T09:00:00"
)
FROM = ("--since", "2026-11-01")

SITUATIONS = (
    Situation(
        "a hundred thousand rows",
        "A month of a large site: one poll reads them in less than 20 s, each once.",
        (
            accounting_sql(many_rows_sql(100_000, 2_000_000, DAY)),
            # Processor time: the clock tells more of what else runs on the machine.
            slurm("{read_accounting} 2026-11-01 {out} 100000 20 > {out}.read"),
            feed(*FROM),
            poll(),
        ),
        (
            ExpectedText("cat {out}.read", contains=("of processor time",)),
            ExpectedJob(
                "2000000",
                "succeeded",
                "",
                "success",
                1,
                480.0,
                5.0,
                "main",
                "root",
                "root",
                closed=True,
            ),
            ExpectedJob(
                "2099999",
                "succeeded",
                "",
                "success",
                1,
                480.0,
                5.0,
                "main",
                "root",
                "root",
                closed=True,
            ),
        ),
        ("show.rows",),
        exclusive=True,
        conf="# Feeds that begin before these rows read them all.",
    ),
    Situation(
        "history of every ending",
        "Accounting of last month by numbers: each state of Slurm is one outcome, GPU-seconds "
        "are GPUs times run time.",
        (
            account(
                AccountingRow(910_001, DAY, DAY + 10, DAY + 110, "COMPLETED"),
                AccountingRow(910_002, DAY, DAY + 20, DAY + 120, "FAILED", exit_code=256),
                AccountingRow(910_003, DAY, DAY + 30, DAY + 130, "TIMEOUT"),
                AccountingRow(910_004, DAY, DAY + 40, DAY + 140, "NODE_FAIL"),
                AccountingRow(910_005, DAY, DAY + 50, DAY + 150, "OUT_OF_MEMORY", exit_code=125),
                AccountingRow(910_006, DAY, 0, DAY + 60, "CANCELLED"),
                AccountingRow(910_007, DAY, DAY + 5, DAY + 105, "FAILED", exit_code=75 << 8),
                AccountingRow(910_008, DAY, DAY + 5, DAY + 105, "BOOT_FAIL"),
            ),
            feed(*FROM),
            poll(),
        ),
        (
            ExpectedJob("910001", "succeeded", "", "success", 1, 800.0, 10.0, closed=True),
            ExpectedJob("910002", "failed", "unknown", "exit", 1, 800.0, 20.0, closed=True),
            ExpectedJob("910003", "time_limit", "user", "time_limit", 1, 800.0, 30.0, closed=True),
            ExpectedJob("910004", "failed", "infra", "node_failure", 1, 800.0, 40.0, closed=True),
            ExpectedJob("910005", "failed", "user", "host_oom", 1, 800.0, 50.0, closed=True),
            ExpectedJob("910006", "cancelled", "", "cancelled", 0, 0.0, "absent", closed=True),
            ExpectedJob("910007", "preempted", "", "preemption", 1, 800.0, 5.0),
            ExpectedJob("910008", "failed", "infra", "node_failure", 1, 800.0, 5.0, closed=True),
        ),
        ("5.made_up", "why.never"),
        exclusive=True,
    ),
    Situation(
        "history of a requeue",
        "Three rows of one id, in the order of accounting: two NODE_FAIL, then COMPLETED.",
        (
            account(
                AccountingRow(910_020, DAY, DAY + 10, DAY + 110, "NODE_FAIL", num_nodes=2, gpus=16),
                AccountingRow(
                    910_020, DAY + 110, DAY + 130, DAY + 190, "NODE_FAIL", num_nodes=2, gpus=16
                ),
                AccountingRow(
                    910_020, DAY + 190, DAY + 200, DAY + 500, "COMPLETED", num_nodes=2, gpus=16
                ),
            ),
            feed(*FROM),
            poll(),
        ),
        (
            ExpectedJob(
                "910020", "succeeded", "", "success", 3, 16.0 * (100 + 60 + 300), 10.0, closed=True
            ),
        ),
        ("why.requeue", "why.node_fail", "1.attempt"),
        exclusive=True,
    ),
    Situation(
        "the same id in two years",
        "slurmctld's ids begin anew after a lost state folder: the later job of the id is no "
        "restart of the one that ended months before.",
        (
            account(
                AccountingRow(
                    910_030,
                    DAY - 8_000_000,
                    DAY - 7_999_990,
                    DAY - 7_999_000,
                    "COMPLETED",
                    name="old",
                ),
                AccountingRow(
                    910_030, DAY, DAY + 10, DAY + 110, "FAILED", exit_code=256, name="new"
                ),
            ),
            feed(*FROM),
            poll(),
        ),
        (ExpectedJob("910030", "failed", "unknown", "exit", 1, 800.0, 10.0, closed=True),),
        ("5.made_up",),
        exclusive=True,
    ),
)
