"""The JSON of a report by field: docs/formats/report.schema.json follows from these dataclasses."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_catalogue import vocabulary
from lockstep_outcomes.joblogs.model import Line
from lockstep_reports.analysis.compare import Change
from lockstep_reports.analysis.cost import Cause
from lockstep_reports.analysis.ends import Standstill
from lockstep_reports.analysis.signs import Sign
from lockstep_reports.analysis.summary import Ending, RankSummary, StepSummary
from lockstep_reports.document.what_if import WhatIfFigures
from lockstep_reports.recording.align import Clocks
from lockstep_reports.recording.collectives import Collective
from lockstep_reports.recording.recording import Attempt
from lockstep_reports.verdict.losses import Loss
from lockstep_reports.verdict.verdict import EpisodeRecord, Verdict

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Source:
    """What the report was made from.

    Attributes:
        kind: name of the reader, such as pages, operations, log.
    """

    kind: str


@dataclass(frozen=True, kw_only=True)
class LogSource(Source):
    """The log that the report was made from, with its numbers of files and lines."""

    files: int
    lines: int


@dataclass(frozen=True, kw_only=True)
class SlowStretch:
    """A stretch of steps that was slow; a log names nobody for it.

    Attributes:
        lost_seconds: wall time that the job lost.
    """

    start_step: int
    end_step: int
    ranks: tuple[int, ...]
    lost_seconds: float


@dataclass(frozen=True, kw_only=True)
class SlowEpisode(EpisodeRecord):
    """A stretch of steps in which some ranks kept all others waiting, with its cost.

    Attributes:
        lost_seconds: wall time that the job lost.
        lost_ratio: loss as a share of the duration of its steps.
    """

    lost_seconds: float
    start_time: float | None
    end_time: float | None
    lost_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class LostTime(Loss):
    """A part of the lost time with its price; the parts sum to what the report calls lost."""

    lost_gpu_seconds: float
    lost_money: float | None


@dataclass(frozen=True, kw_only=True)
class JobGoodput:
    """Where the allocated time of a whole job went, over all its attempts."""

    attempts: int
    elapsed_seconds: float | None
    allocated_gpu_seconds: float | None
    productive_ratio: float | None
    ettr_ratio: float | None
    gpu_seconds: Mapping[vocabulary.GoodputState, float]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Comparison of the report with another one."""

    against: str
    verdict_changed: bool
    verdict_before: Verdict
    changes: tuple[Change, ...]
    figures: Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What every report holds; an unknown value is null, and ``unknown`` has the reason.

    Attributes:
        headline: the most severe finding about the job, one sentence.
        severity: what the headline is about.
        first_sign: wall clock, seconds since the epoch.
        goodput: seconds by state, unknown among them; ratio: the productive share.
        unknown: why a field is null, by its name.
    """

    schema: int = SCHEMA_VERSION
    headline: str
    severity: vocabulary.Severity
    world_size: int | None
    outcome: vocabulary.OutcomeOrRunning
    verdict: Verdict
    steps: StepSummary
    startup_seconds: float | None
    run_seconds: float | None
    wall_seconds: float | None
    seconds_after_last_progress: float | None
    first_sign: float | None
    last_progress: float | None
    last_sign: float | None
    lost_seconds: float | None
    goodput: Mapping[str, float | None]
    collectives: tuple[Collective, ...] | None = None
    what_if: WhatIfFigures | None = None
    alignment: Clocks | None = None
    slo: None = None
    comparison: Compared | None = None
    notes: tuple[str, ...]
    unknown: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class StepsReport(Report):
    """A report on recorded steps.

    Attributes:
        attempts: the attempts that the report is not about.
        first_step: start of the first step, as ``first_sign``.
        ranks_over: first and last step that ``ranks`` covers.
    """

    source: Source
    job_id: str
    cluster: str
    project: str
    attempt: int
    attempts: tuple[Attempt, ...]
    missing_ranks: tuple[int, ...]
    episodes: tuple[SlowEpisode, ...]
    losses: tuple[LostTime, ...]
    standstills: tuple[Standstill, ...]
    signs: tuple[Sign, ...]
    ranks: tuple[RankSummary, ...]
    ranks_over: tuple[int | None, ...]
    endings: tuple[Ending, ...]
    first_step: float | None
    lost_ratio: float | None
    lost_gpu_seconds: float | None
    lost_money: float | None
    price_per_gpu_hour: float | None
    causes: tuple[Cause, ...]
    job_goodput: JobGoodput | None


@dataclass(frozen=True, kw_only=True)
class LogReport(Report):
    """A report on the log of a job.

    Attributes:
        reason: the verdict on the end in a sentence.
        events: the first line of each finding.
    """

    source: LogSource
    episodes: tuple[SlowStretch, ...]
    failure_class: vocabulary.FailureClass | None
    reason: str
    events: tuple[Line, ...]
    first_cause: Line | None
