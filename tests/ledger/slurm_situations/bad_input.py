"""What a site does not have, or has differently, is said in words."""

from .scenario import (
    ExpectedJob,
    ExpectedText,
    Situation,
    feed,
    on_node,
    pause,
    poll,
    slurm,
    start,
    stop,
    submit,
    wait,
    watch,
)

SITUATIONS = (
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
        ("bad.dbd",),
        exclusive=True,
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
        ("bad.dbd",),
    ),
    Situation(
        "a partition is renamed",
        "Waiting jobs move with scontrol; what ran keeps the old name, and the series of both "
        "are there.",
        (
            submit("a", "sleep 1", "--gpus=1", "-p", "batch"),
            wait("a"),
            poll(),
            slurm("scontrol create partitionname=gpu-large nodes=ALL"),
            submit("b", "sleep 1", "--gpus=1", "-p", "gpu-large"),
            wait("b"),
            poll(),
            slurm("scontrol delete partitionname=gpu-large"),
        ),
        (
            ExpectedJob("{a}", "succeeded", "", queue="batch"),
            ExpectedJob("{b}", "succeeded", "", queue="gpu-large"),
        ),
        ("bad.partition",),
        exclusive=True,
    ),
    Situation(
        "the feed is told a partition that is gone",
        "A filter that matches nothing is said in words: the name, and those that exist.",
        (feed("--partition", "no-such"), submit("a", "sleep 1", "--gpus=1"), wait("a"), poll()),
        (ExpectedText("", contains=("no-such",), lacks=("Traceback",), status=None),),
        ("bad.partition",),
        exclusive=True,
    ),
    Situation(
        "hidepid=2",
        "An agent that is not root sees no process of others: GPU attribution says so once, "
        "and the job is watched by its page.",
        (
            on_node("{n1}", "mount -o remount,hidepid=2 /proc"),
            submit("a", "srun {train} --seconds 10", "--gpus=1", "-w", "{n1}"),
            wait("a", "RUNNING"),
            watch("a"),
            wait("a"),
        ),
        (
            ExpectedJob("{a}", "succeeded", "", attempts=1, watched_on=("{n1}",)),
            ExpectedText(
                "{lockstep} doctor --preflight", contains=("hidepid",), status=None, node="{n1}"
            ),
        ),
        ("bad.hidepid",),
        exclusive=True,
    ),
    Situation(
        "an old systemd",
        "systemd 247 knows no %d: the unit that is written for it has none, or the command "
        "says from which version on.",
        (),
        (
            ExpectedText(
                "{lockstep} deploy systemd --to {out} --systemd 247 && ! grep -rF '%d' {out}",
                lacks=("Traceback",),
            ),
        ),
        ("bad.systemd",),
    ),
    Situation(
        "slurmctld away for the writer of targets",
        "sinfo fails: the file of before stays, and one sentence says so.",
        (stop("slurmctld"), pause(1), start("slurmctld")),
        (ExpectedText("{deploy}/file-sd {out}", lacks=("Traceback",), status=None),),
        ("3.sd",),
        exclusive=True,
    ),
)
