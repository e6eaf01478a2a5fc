"""Rows of the game day: what is done to a job and its node, and what has to come of it.

A file below ``rows/`` is a YAML list of rows::

    - row: f6-allocation            # id; the job, and the cluster in every label, have this name
      failure: F6                   # of DESIGN, or what the row is about
      says: An allocation of one rank fails.
      draw: {rank: [0, 3], step: [40, 60]}  # whole numbers drawn by --seed; $rank, $step below
      job:                          # fields of `Job`; ranks and strategy as the command says
        faults: ["oom:rank=$rank,step=$step"]     # of docs/faults.md
      actions:                      # one key a name of `actions.ACTIONS`, its value the argument
        - {at: step $step, gpu: {index: 0, set: {lost: 15}}}
        - {at: notified, signal: {to: job, name: SIGINT}}
      expect:                       # fields of `Expectation`
        notices:
          - {alert: TrainOutOfMemory, to: tickets, severity: warning, within: 60s,
             labels: {rank: "$rank", node: node-0}}
        ledger: {outcome: failed, failure_class: user}
        report: rank $rank

``at`` is ``start`` (before the job; the default), ``step N``, ``fault`` (the trainer has announced
its fault), ``recovered`` (an attempt after the first has stepped) or ``notified`` (all that is
expected has come, and nothing more for ``watch``); ``after: 5s`` waits from there. The failure
begins with the first fault of the trainer or the first action at a step or ``after`` a while.
Whatever is notified of the row's cluster and neither expected nor in ``may`` fails the row.
"""

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Literal

import msgspec
import yaml

from lockstep_records.text.durations import parse_duration

SERVERS_GIGABYTES = 0.5
ROWS = Path(__file__).parent / "rows"
_TEXTS = ("summary", "description", "causes")
_ROW_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_AT = re.compile(r"start|fault|recovered|notified|step [0-9]+")


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job.

    Attributes:
        ranks: of the whole job; None as the command says.
        pace: each rank sleeps so long in each step, so that steps need little of the processors.
        checkpoint_every: steps; 0 writes none.
        nodes: with an agent and a fake node each; the ranks are divided among them.
        launches: how often the whole command is started, as a scheduler requeues it.
        flags: further ones of ``lockstep train``.
        environment: of the launcher and its ranks.
    """

    faults: tuple[str, ...] = ()
    ranks: int | None = None
    strategy: str | None = None
    steps: int = 600
    pace: str = "120ms"
    checkpoint_every: int = 0
    max_restarts: int = 0
    nodes: int = 1
    launches: int = 1
    job_class: str = "production"
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = {}


class Notice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One alert that has to reach a receiver within a duration of the failure.

    Attributes:
        labels: regular expressions, each for the whole value of a label.
        says: regular expression found in summary, description or causes.
    """

    alert: str
    to: Literal["pager", "tickets"]
    severity: Literal["critical", "warning"]
    within: str
    labels: dict[str, str] = {}
    says: str = ""

    @property
    def within_seconds(self) -> float:
        """The duration; ValueError where it is none."""
        return parse_duration(self.within)

    def matches(self, alert: Mapping[str, Any]) -> bool:
        """Whether a firing alert is this one, with its labels and words."""
        expected = {"alertname": self.alert, "severity": self.severity, **self.labels}
        labels, words = (
            alert["labels"],
            " ".join(alert["annotations"].get(each, "") for each in _TEXTS),
        )
        return (
            alert["status"] == "firing"
            and all(re.fullmatch(value, labels.get(key, "")) for key, value in expected.items())
            and re.search(self.says, words) is not None
        )


class Ledger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ledger's record of the job.

    Attributes:
        culprit: rank of the first attempt that failed, ``node NAME``, or ``nobody``.
        lost: GPU-seconds by states, ``rework`` or ``hang+recovery``: a formula of the truths that
            ``scene.Truth`` has, which holds within 5 %.
    """

    outcome: str
    failure_class: str | None = None
    cause: str = ""
    culprit: str = ""
    attempts: int | None = None
    preemptions: int | None = None
    lost: dict[str, str] = {}


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What has to come of a row.

    Attributes:
        notices: in any order.
        notified: notifications by receiver; by default as many as it has notices.
        may: alerts that may come besides, and are not counted.
        watch: how long after the last notice nothing more may come; of a row without one, after
            the failure.
        report: regular expression found in the first line of the report.
        steps_lost: the most; exact where the steps of the checkpoints decide it.
        undisturbed: whether steps take as long at the end as before the failure, within 10 %.
    """

    notices: tuple[Notice, ...] = ()
    notified: dict[str, int] = {}
    may: tuple[str, ...] = ()
    watch: str = "75s"
    ledger: Ledger | None = None
    report: str = ""
    resumed: bool | None = None
    steps_lost: int | None = None
    undisturbed: bool = False


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Something done at a moment, see the module."""

    name: str
    argument: Any
    at: str = "start"
    after: str = "0s"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, or one odd day, with its expectation.

    Attributes:
        exclusive: it disturbs what other rows need, and has servers of its own.
        quick: it is of the subset that CI runs.
        needs: what the machine must have besides what its actions need; a key of ``NEEDS``.
        cluster: of its labels; the row's own name where it shares none.
        departs: why the expectation is another than DESIGN's, where it is.
    """

    row: str
    failure: str
    says: str
    expect: Expectation
    job: Job | None = None
    actions: tuple[Action, ...] = ()
    agent: tuple[str, ...] = ()
    exclusive: bool = False
    quick: bool = False
    needs: tuple[str, ...] = ()
    cluster: str = ""
    departs: str = ""
    limit: str = "10m"

    def __post_init__(self) -> None:
        if not self.cluster:
            msgspec.structs.force_setattr(self, "cluster", self.row)

    @property
    def node(self) -> str:
        """Before the number of a node in its name; rows of one cluster have nodes of their own."""
        return "node-" if self.cluster == self.row else f"{self.row.split('-')[2]}-node-"

    @property
    def gigabytes(self) -> float:
        """About the memory that it takes."""
        of_job = 0.3 * (self.job.ranks or 0) + 0.4 * self.job.nodes if self.job else 0.0
        return of_job + SERVERS_GIGABYTES * self.exclusive

    @property
    def expected_seconds(self) -> float:
        """About how long it takes, by its deadlines."""
        deadlines = [notice.within_seconds for notice in self.expect.notices]
        return max(deadlines, default=0.0) + parse_duration(self.expect.watch)


class RowError(ValueError):
    """A row is not as the module says; the text names it."""


def read_rows(seed: int, ranks: int, strategy: str, folder: Path = ROWS) -> list[Row]:
    """All rows, with what they leave to chance drawn; or RowError."""
    rows = [
        _read_row(fields, seed, ranks, strategy)
        for path in sorted(folder.glob("*.yaml"))
        for fields in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
    names = [row.row for row in rows]
    if len(set(names)) < len(names):
        raise RowError(f"two rows have one name: {sorted(names)}")
    return rows


def _read_row(fields: dict[str, Any], seed: int, ranks: int, strategy: str) -> Row:
    name = str(fields.get("row"))
    if not _ROW_ID.fullmatch(name):
        raise RowError(f"row {name!r}: write letters, digits and dashes")
    chance = random.Random(f"{seed} {name}")
    draw = {"ranks": [ranks, ranks], **fields.pop("draw", {})}
    if (fields.get("job") or {}).get("ranks"):
        draw["ranks"] = [fields["job"]["ranks"]] * 2
    values = {key: chance.randint(*bounds) for key, bounds in draw.items()}
    values.setdefault("rank", chance.randrange(values["ranks"]))
    values["other"] = (values["rank"] + 1) % values["ranks"]
    try:
        fields = _fill(fields, {key: str(value) for key, value in values.items()})
        if fields.get("job") is not None:
            fields["job"] = {"ranks": ranks, "strategy": strategy} | fields["job"]
        fields["actions"] = [_read_action(action) for action in fields.get("actions", ())]
        row = msgspec.convert(fields, Row, strict=True)
        for pattern in (row.expect.report, *(notice.says for notice in row.expect.notices)):
            re.compile(pattern)
        for duration in (row.limit, row.expect.watch, *(n.within for n in row.expect.notices)):
            parse_duration(duration)
    except (msgspec.ValidationError, KeyError, ValueError, re.error) as error:
        raise RowError(f"row {name}: {error}") from error
    return row


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return Template(value).substitute(values)
    if isinstance(value, dict):
        return {key: _fill(each, values) for key, each in value.items()}
    return [_fill(each, values) for each in value] if isinstance(value, list) else value


def _read_action(fields: dict[str, Any]) -> dict[str, Any]:
    times: dict[str, Any] = {key: str(fields.pop(key)) for key in ("at", "after") if key in fields}
    if not _AT.fullmatch(times.get("at", "start")):
        raise RowError(f"at: {times['at']} names no moment of a row")
    [(name, argument)] = fields.items()
    return {"name": name, "argument": argument, **times}


_NODE = re.compile(r"\bnode-(\d)")


def draw_pairs(rows: Sequence[Row], count: int, seed: int) -> list[tuple[Row, Row]]:
    """So many pairs of different rows that have notices and share their servers, by chance."""
    able = [row for row in rows if row.job and row.expect.notices and not row.exclusive]
    chance = random.Random(f"pairs {seed}")
    pairs = []
    for number in range(count):
        first, second = chance.sample(able, 2)
        pairs.append((_move(first, number, "a"), _move(second, number, "b")))
    return pairs


def _move(row: Row, number: int, side: str) -> Row:
    """The row in the cluster of its pair, with nodes of names of their own."""
    text = _NODE.sub(rf"{side}-node-\1", msgspec.json.encode(row).decode())
    moved = msgspec.json.decode(text, type=Row)
    cluster = f"pair-{number}"
    return msgspec.structs.replace(moved, row=f"{cluster}-{side}-{row.row}", cluster=cluster)
