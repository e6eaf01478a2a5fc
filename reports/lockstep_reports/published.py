"""The published form of a report's JSON, field by field; docs/report.schema.json is made from it.

Needs msgspec, as ``schema`` does; reports themselves do not.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from lockstep_catalogue import vocabulary
from lockstep_reports.published_parts import (
    Count,
    JobGoodput,
    Numbers,
    Ratio,
    Seconds,
    Sign,
    Standstill,
    WhatIf,
)


class Source(TypedDict):
    """What the report was made from."""

    kind: Annotated[str, Meta(description="Name of the reader, such as pages, operations, log.")]
    files: NotRequired[Count]
    lines: NotRequired[Count]


class Verdict(TypedDict):
    """Who was slow, or to blame for the end."""

    kind: vocabulary.Verdict
    ranks: Annotated[list[int], Meta(description="The culprits, costliest first.")]
    group: str | None
    phase: str | None
    cause: str | None
    confidence: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="One minus the bound on the probability of such a finding by chance."),
    ]
    evidence: list[str]


class Episode(TypedDict):
    """A stretch of steps that was slow."""

    start_step: int
    end_step: int
    ranks: list[int]
    lost_seconds: Annotated[float, Meta(description="Wall time that the job lost.")]
    ongoing: NotRequired[bool]
    group: NotRequired[str | None]
    phase: NotRequired[str | None]
    phase_seconds: NotRequired[Seconds]
    late_seconds: NotRequired[float]
    last_share: NotRequired[float]
    confidence: NotRequired[float]
    evidence: NotRequired[list[str]]
    start_time: NotRequired[Seconds]
    end_time: NotRequired[Seconds]
    lost_ratio: NotRequired[Ratio]
    busy_host: NotRequired[
        Annotated[
            bool, Meta(description="Other processes had the ranks' cores: nobody is accused.")
        ]
    ]


class Spike(TypedDict):
    """A step over 1.2 times the median."""

    index: Annotated[int, Meta(ge=0, description="Position among the recorded steps, from 0.")]
    ratio: float


class StepLoss(TypedDict):
    """Slow steps that belong together, and what they cost."""

    kind: Literal["periodic", "burst", "restart", "single", "rest"]
    first_step: int
    last_step: int
    count: Count
    period_steps: int | None
    lost_seconds: float
    largest_ratio: float
    phase: Annotated[
        str | None, Meta(description="Planned pause that explains half of it: checkpoint or eval.")
    ]
    ranks: Annotated[list[int], Meta(description="Ranks that were in that pause.")]


class Steps(TypedDict):
    """Durations of the steps."""

    count: Count
    first: int | None
    last: int | None
    median_seconds: Seconds
    p95_seconds: Seconds
    spikes: list[Spike]
    losses: list[StepLoss]


class Collective(TypedDict):
    """One collective over its ranks."""

    kind: str
    start_spread_seconds: Seconds
    last_rank: int | None
    ranks: list[int]


class Alignment(TypedDict):
    """Offsets of the clocks that were corrected, and the error that is left."""

    offsets: Annotated[Numbers, Meta(description="Seconds ahead, by node or rank.")]
    drifts: Annotated[Numbers, Meta(description="Seconds gained a second, by node or rank.")]
    residual_seconds: Seconds
    residual_p95_seconds: Seconds


class Cause(TypedDict):
    """GPU time of one state that is not productive."""

    cause: str
    gpu_hours: float
    ratio: float
    money: float | None


class Rank(TypedDict):
    """One rank over the steps of ``ranks_over``."""

    rank: int
    node: str
    last_share: Ratio
    lag_seconds: Seconds
    lag_p95_seconds: Seconds
    lateness_seconds: Seconds
    own_work_seconds: Seconds
    sync_seconds: Seconds
    phase_seconds: Numbers


class Ending(TypedDict):
    """End of a rank."""

    rank: int
    exit_code: int | None
    signal: str | None
    first: Annotated[bool | None, Meta(description="It was the first to fail.")]
    phase: str | None
    last_step: int | None
    exception: Annotated[str | None, Meta(description="What ended it, and where.")]
    last_output: Annotated[str | None, Meta(description="Last lines of its stderr.")]


class Attempt(TypedDict):
    """An attempt that the report is not about."""

    number: int
    outcome: str | None


class Line(TypedDict):
    """A line of a log."""

    file: str
    number: int
    time: Seconds
    rank: int | None
    kind: str
    text: str


class Change(TypedDict):
    """A duration before and after: medians over the steps."""

    what: str
    before_seconds: Seconds
    after_seconds: Seconds
    difference_seconds: Seconds
    ratio: Ratio
    low_seconds: Annotated[Seconds, Meta(description="Lower end of the 95 % interval.")]
    high_seconds: Seconds
    effect: Annotated[
        Annotated[float, Meta(ge=-1, le=1)] | None, Meta(description="Cliff's delta.")
    ]


class Compared(TypedDict):
    """Comparison of the report with another one."""

    against: str
    verdict_changed: bool
    verdict_before: Verdict
    changes: list[Change]
    figures: dict[str, Numbers]


class Report(TypedDict):
    """A report of ``lockstep report``; unknown is null, and ``unknown`` has the reason."""

    schema: Annotated[int, Meta(ge=1, description="Version of this form.")]
    source: Source
    world_size: int | None
    outcome: vocabulary.OutcomeOrRunning
    headline: Annotated[str, Meta(description="The gravest truth about the job, one sentence.")]
    severity: Annotated[vocabulary.Severity, Meta(description="What the headline is about.")]
    verdict: Verdict
    episodes: list[Episode]
    steps: Steps
    startup_seconds: Seconds
    run_seconds: Seconds
    wall_seconds: Seconds
    seconds_after_last_progress: Seconds
    lost_seconds: Seconds
    goodput: Annotated[
        Numbers,
        Meta(description="Seconds of all ranks by state, unknown among them; ratio: productive."),
    ]
    collectives: list[Collective] | None
    what_if: WhatIf | None
    alignment: Alignment | None
    slo: None
    comparison: Compared | None
    notes: list[str]
    unknown: Annotated[dict[str, str], Meta(description="Why a field is null, by its name.")]
    first_sign: Annotated[Seconds, Meta(description="Wall clock, seconds since the epoch.")]
    last_progress: Seconds
    last_sign: Seconds
    job_id: NotRequired[str]
    cluster: NotRequired[str]
    project: NotRequired[str]
    attempt: NotRequired[Count]
    attempts: NotRequired[list[Attempt]]
    missing_ranks: NotRequired[list[int]]
    first_step: NotRequired[
        Annotated[Seconds, Meta(description="Start of the first step, as ``first_sign``.")]
    ]
    lost_ratio: NotRequired[Ratio]
    lost_gpu_seconds: NotRequired[Seconds]
    lost_money: NotRequired[float | None]
    price_per_gpu_hour: NotRequired[float | None]
    causes: NotRequired[list[Cause]]
    job_goodput: NotRequired[JobGoodput | None]
    signs: NotRequired[list[Sign]]
    standstills: NotRequired[list[Standstill]]
    ranks: NotRequired[list[Rank]]
    ranks_over: NotRequired[list[int | None]]
    endings: NotRequired[list[Ending]]
    failure_class: NotRequired[vocabulary.FailureClass | None]
    reason: NotRequired[str]
    events: NotRequired[list[Line]]
    first_cause: NotRequired[Line | None]
