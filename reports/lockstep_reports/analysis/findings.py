"""Findings of an analysis of all steps, kept as JSON for when most of them are gone."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.analysis.cost import Goodput, cost
from lockstep_reports.analysis.ends import NotFinite, Standstill, Times
from lockstep_reports.analysis.steps import Span, StepAnalysis, Totals
from lockstep_reports.analysis.summary import RankSummary, StepSummary
from lockstep_reports.arrays import Flags
from lockstep_reports.recording.align import Clocks
from lockstep_reports.recording.steps import Steps
from lockstep_reports.verdict.losses import Loss
from lockstep_reports.verdict.verdict import Episode, Verdict
from lockstep_reports.wording import clock

# So much stays around what a report names: more than a search needs to find it again, and than the
# 50 ms between two readings of waits for a core.
_MARGIN_STEPS, _MARGIN_SECONDS = 64, 1.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Findings:
    """What of a ``StepAnalysis`` needs all steps, under the same names.

    Attributes:
        notes: of the steps.
        clocks: the offsets and what is left of them.
    """

    verdict: Verdict
    episodes: tuple[Episode, ...]
    spans: tuple[Span, ...]
    losses: tuple[Loss, ...]
    totals: Totals
    summary: StepSummary
    ranks: tuple[RankSummary, ...]
    ranks_over: tuple[int | None, int | None]
    goodput: Goodput
    times: Times
    standstills: tuple[Standstill, ...]
    not_finite: NotFinite | None
    covered_seconds: float
    notes: tuple[str, ...]
    clocks: Clocks


_COPIED = [each.name for each in fields(StepAnalysis) if each.name in Findings.__annotations__]


def encode_findings(analysis: StepAnalysis) -> bytes:
    """The findings of an analysis as JSON."""
    alignment = analysis.alignment
    findings = Findings(
        **{name: getattr(analysis, name) for name in _COPIED},
        covered_seconds=analysis.scores.covered_seconds,
        notes=analysis.steps.notes,
        clocks=Clocks(**{each.name: getattr(alignment, each.name) for each in fields(Clocks)}),
    )
    return msgspec.json.encode(findings, enc_hook=_encode)


def _encode(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else [value.start, value.stop]


def decode_findings(data: bytes) -> Findings:
    """The findings in JSON; raises ValueError for those of another version."""
    return msgspec.json.decode(data, type=Findings, dec_hook=_decode)


def _decode(kind: Any, value: Any) -> Any:
    return slice(*value) if kind is slice else np.array(value, dtype=np.float64)


def restore_findings(analysis: StepAnalysis) -> StepAnalysis:
    """The analysis of what thinning left, with what that of all steps found; any other as it is."""
    thinned, steps = analysis.recording.thinned, analysis.steps
    if thinned is None:
        return analysis
    try:
        found = decode_findings(thinned.findings)
        episodes = tuple(_find_columns(episode, steps) for episode in found.episodes)
    except ValueError:  # of another version, or steps of an episode are lost
        note = "Verdict, episodes and totals are those of the whole steps alone."
        return _with_notes(analysis, (*steps.notes, note))
    note = f"Verdict, episodes and totals are those of all steps, found at {clock(thinned.time)}."
    scores = replace(analysis.scores, covered_seconds=found.covered_seconds)
    copied = {name: getattr(found, name) for name in _COPIED} | {
        "episodes": episodes,
        "ranks": tuple(each for each in found.ranks if each.rank in steps.ranks),
    }
    analysis = replace(
        analysis,
        **copied,
        scores=scores,
        cost=cost(steps, scores, found.losses, analysis.price_per_gpu_hour),
        alignment=replace(
            analysis.alignment,
            **{each.name: getattr(found.clocks, each.name) for each in fields(Clocks)},
        ),
    )
    return _with_notes(analysis, (*dict.fromkeys((*found.notes, *steps.notes)), note))


def _with_notes(analysis: StepAnalysis, notes: tuple[str, ...]) -> StepAnalysis:
    steps = replace(analysis.steps, notes=notes)
    return replace(analysis, recording=replace(analysis.recording, steps=steps))


def _find_columns(episode: Episode, steps: Steps) -> Episode:
    """The episode at its columns of what is left; ValueError where one is missing."""
    first, last = np.searchsorted(steps.numbers, [episode.start_step, episode.end_step]).tolist()
    columns = slice(first, last + 1)
    if len(steps.numbers[columns]) != len(episode.lost_by_step):
        raise ValueError(f"steps {episode.start_step} to {episode.end_step} are not all there")
    return replace(episode, columns=columns)


def find_intact(analysis: StepAnalysis, steps: Steps) -> Flags:
    """Which of all steps [steps] stay whole: what a report names, with a margin, and both ends."""
    numbers, starts = steps.numbers, nan_stats.lowest(steps.start, axis=0)
    # A step without a clock has that of the one before.
    times = np.nan_to_num(np.fmax.accumulate(starts), nan=-np.inf)
    intact = np.zeros(len(numbers), dtype=bool)
    for span in _named_spans(analysis, steps):
        places = np.searchsorted(numbers, span)
        first, last = np.minimum(places, len(numbers) - 1).tolist()
        early, late = times[first] - _MARGIN_SECONDS, times[last] + _MARGIN_SECONDS
        begin = min(first - _MARGIN_STEPS, int(np.searchsorted(times, early)))
        end = max(last + _MARGIN_STEPS, int(np.searchsorted(times, late)))
        intact[max(0, begin) : end + 1] = True
    return intact


def _named_spans(analysis: StepAnalysis, steps: Steps) -> Iterator[tuple[int, int]]:
    """First and last step of what a report names."""
    for episode in analysis.episodes:
        yield episode.start_step, episode.end_step
    single = [int(steps.numbers[at]) for at in (0, -1)]
    single += [each.step + 1 for each in analysis.standstills if each.step is not None]
    single += [step for loss in analysis.losses for step in loss.steps]
    # Of slow steps in succession their begin and their end.
    single += [step for e in analysis.summary.losses for step in (e.first_step, e.last_step)]
    if analysis.not_finite is not None:
        single += [analysis.not_finite.first_step, analysis.not_finite.last_step]
    yield from ((step, step) for step in single)
