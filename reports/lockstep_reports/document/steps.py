"""Builds the document on recorded steps from their analysis."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.palette import STATE_COLOURS
from lockstep_outcomes.progress.goodput import WholeJob
from lockstep_reports import nan_stats
from lockstep_reports.analysis.cost import SECONDS_PER_HOUR, causes, cost
from lockstep_reports.analysis.signs import Sign, find_signs
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.analysis.summary import Ending, RankSummary, loss_sentence
from lockstep_reports.arrays import Matrix
from lockstep_reports.document import published
from lockstep_reports.document import step_sentences as sentences
from lockstep_reports.document.advice import step_advice
from lockstep_reports.document.headline import Finding, findings
from lockstep_reports.document.model import (
    Block,
    Document,
    Figure,
    Row,
    Section,
    Share,
    Shares,
    Table,
)
from lockstep_reports.document.published import (
    WhatIfFigures,
    describe_replay,
    heat_map_quantity,
    name_ranks,
    step_reasons,
    why_no_arrivals,
    why_no_phases,
    with_reasons,
)
from lockstep_reports.document.step_sentences import (
    describe_end,
    list_caveats,
    step_cards,
    write_story,
)
from lockstep_reports.document.timeline import step_trace_events
from lockstep_reports.recording.align import Clocks
from lockstep_reports.verdict.losses import Loss
from lockstep_reports.verdict.verdict import Episode, EpisodeRecord, slow_name
from lockstep_reports.wording import UNKNOWN, clock, duration, milliseconds, percent, plural

HEAT_MAPS = {
    "lateness": (
        "Who was late, step by step",
        "Milliseconds by which each rank came later to the synchronisation than the earliest one.",
    ),
    "own": (
        "Who was slower than usual, step by step",
        "How much longer than its own median each worker took, in percent.",
    ),
}
"""Title and hint of a heat map, by what it shows."""
# What a curve of step times can prove depends on whose times they are.
STEP_HINTS = {
    "lateness": "All ranks share it, so it shows when, not who.",
    "own": "Median over the workers, whose times are their own.",
    "nothing": "One series represents the job.",
}


def list_figures(analysis: StepAnalysis) -> dict[str, Figure]:
    """The figures by name."""
    names = []
    if heat_map_quantity(analysis) != "nothing":
        names.append("heat_map")
    if len(analysis.steps.numbers) > 1:
        names.append("step_times")
    if why_no_phases(analysis) is None:
        names.append("phases")
    if analysis.replayed is not None and analysis.replayed.what_if is not None:
        names += ["slowed_by", "timeline"]
    return {name: Figure(name, partial(_draw, name, analysis)) for name in names}


def _draw(name: str, analysis: StepAnalysis) -> str:
    from lockstep_reports.document.figures import draw_figure  # noqa: PLC0415  # loads plotly

    return draw_figure(name, analysis)


MAX_ROWS = 32
_MEANINGS = {
    "data": "waiting for the next batch",
    "forward": "forward pass",
    "backward": "backward pass until the last local gradient is ready",
    "sync": "from the own arrival at the collectives to their completion: waiting and transfer",
    "optimizer": "optimizer step",
    "checkpoint": "writing a checkpoint",
    "eval": "evaluation",
    "other": "host work between the others",
}
_STATES_HINT = (
    "Productive: forward, backward and optimizer; a slow rank's longer work counts there too."
    " Straggler wait: what the others waited for it. Start-up: from the birth of a rank's page to"
    " its first step. Unknown: between the recorded steps."
)
_JOB_HINT = (
    "Rework: steps done again after a restart. Recovery: from the end of an attempt to the begin"
    " of the next. Hang: no rank moved."
)
_CLOCKS_HINT = (
    "Times of arrival are put on one clock by the ends of the synchronisations, which all ranks"
    " share. The verdict uses no clock."
)
_CONFIDENCE = (
    "Confidence: one minus the bound of finding the like anywhere in a run in which nobody is slow."
)


def step_sections(
    analysis: StepAnalysis, signs: Sequence[Sign], what_if: WhatIfFigures | None
) -> tuple[Section, ...]:
    """The sections that have anything to show."""
    sections = _list_sections(analysis, signs, what_if)
    return tuple(section for section in sections if any(map(_has_content, section.blocks)))


def _has_content(block: Block) -> bool:
    if isinstance(block, Table):
        return bool(block.rows)
    return bool(block.parts if isinstance(block, Shares) else block)


def _list_sections(
    analysis: StepAnalysis, signs: Sequence[Sign], what_if: WhatIfFigures | None
) -> Iterator[Section]:
    drawn = list_figures(analysis)
    yield from _draw_steps(analysis, drawn)
    found = tuple(sentences.sign_sentences(signs))
    yield Section(title="Evidence", blocks=((*sentences.list_further_evidence(analysis), *found),))
    if analysis.episodes:
        table = _tabulate_evidence(analysis)
        yield Section(title="Episodes", hint=_CONFIDENCE, blocks=(table,), is_brief=False)
    losses = tuple(map(loss_sentence, analysis.summary.losses))
    yield Section(title="Slow steps", blocks=(losses,))
    if what_if is not None:
        blocks = (drawn["slowed_by"], _tabulate_repairs(analysis, what_if))
        hint = _describe_what_if(what_if)
        yield Section(title="What if", hint=hint, blocks=blocks, is_brief=False)
        title = "A step as recorded, and as it would be"
        hint = "The median step of the slowest replica; below each stage the ideal one."
        yield Section(title=title, hint=hint, blocks=(drawn["timeline"],), is_brief=False)
    yield Section(title="Time lost", blocks=(_tabulate_losses(analysis),))
    yield _describe_arrivals(analysis)
    if "phases" in drawn:
        hint = "Mean step of each rank over the same steps."
        blocks = (drawn["phases"], _tabulate_phases())
        yield Section(title="Own work against waiting", hint=hint, blocks=blocks, is_brief=False)
    yield from _describe_time(analysis)
    endings = _tabulate_endings(analysis.endings)
    yield Section(title="How the ranks ended", blocks=(endings,), is_brief=False)
    if analysis.alignment.residual_seconds is not None:
        clocks = _tabulate_clocks(analysis)
        yield Section(title="Clocks", hint=_CLOCKS_HINT, blocks=(clocks,), is_brief=False)


def _draw_steps(analysis: StepAnalysis, drawn: Mapping[str, Figure]) -> Iterator[Section]:
    quantity = heat_map_quantity(analysis)
    outlined = shaded = ""
    if analysis.episodes:
        outlined = " Outlined: the episodes."
        shaded = " Shaded: the episodes; the grey line is what is left without them."
    if "heat_map" in drawn:
        title, hint = HEAT_MAPS[quantity]
        blocks = (drawn["heat_map"],)
        yield Section(title=title, hint=hint + outlined, blocks=blocks, is_brief=False)
    if "step_times" in drawn:
        hint = f"{STEP_HINTS[quantity]} Single spikes may be cut off.{shaded}"
        yield Section(title="Step time", hint=hint, blocks=(drawn["step_times"],), is_brief=False)


def _tabulate_evidence(analysis: StepAnalysis) -> Table:
    rows = (
        Row(
            (
                slow_name(e), e.phase or "none of its own", f"{e.start_step} to {e.end_step}",
                percent(e.last_share), duration(e.late_seconds),
                "none" if e.phase_seconds is None else duration(e.phase_seconds),
                f"{100 * e.confidence:.1f} %",
            )
        )
        for e in analysis.episodes
    )  # fmt: skip
    columns = (
        "who", "phase", "steps", "last in", "late a step", "phase longer by", "confidence",
    )  # fmt: skip
    return Table(columns, tuple(rows), 3)


def _tabulate_losses(analysis: StepAnalysis) -> Table:
    is_timed = sentences.has_clock(analysis)
    rows = []
    for episode in analysis.episodes:
        began = (clock(analysis.episode_span(episode)[0]),) if is_timed else ()
        cells = (
            slow_name(episode), episode.phase or "none of its own",
            f"{episode.start_step} to {episode.end_step}", *began,
            sentences.describe_episode_end(analysis, episode), duration(episode.late_seconds),
            duration(episode.lost_seconds), percent(analysis.lost_step_ratio(episode)),
        )  # fmt: skip
        rows.append(Row(cells))
    texts = ("who", "phase", "steps", *(("began (UTC)", "ended (UTC)") if is_timed else ("ended",)))
    return Table((*texts, "late a step", "lost", "of each step"), tuple(rows), len(texts))


def _describe_what_if(what_if: WhatIfFigures) -> str:
    return (
        "Every operation was replayed with other durations. With all of them ideal a step would"
        f" take {duration(what_if.ideal_seconds)} instead of {duration(what_if.seconds)}: slowdown"
        f" {what_if.slowdown:.3f}, {percent(what_if.waste_ratio)} of the time wasted. The replay is"
        f" {percent(what_if.simulation_error_ratio)} off the recorded steps. Bars: how much longer"
        " than ideal a step is when only that one stays as recorded."
    )


def _tabulate_repairs(analysis: StepAnalysis, what_if: WhatIfFigures) -> Table:
    replay = analysis.replayed.what_if if analysis.replayed else None
    assert replay is not None
    rows = (
        Row(
            (
                f"without the slowness of {name_ranks(replay, repair.ranks)}",
                percent(repair.removed_ratio), f"{duration(repair.saved_seconds_per_step)} less",
                percent(repair.saved_step_ratio), f"{duration(repair.saved_gpu_seconds)} less",
                UNKNOWN if repair.saved_money is None else f"{repair.saved_money:.2f} less",
            )
        )
        for repair in (what_if.worst_workers, *what_if.stages.values())
        # A repair that saves nothing is not worth a row.
        if (repair.removed_ratio or 0) > 0
    )  # fmt: skip
    columns = ("repaired", "of the slowdown", "a step", "of a step")
    return Table((*columns, "over the recorded steps, all ranks", "money"), tuple(rows), 1)


def _describe_arrivals(analysis: StepAnalysis) -> Section:
    latest = sorted(analysis.ranks, key=lambda rank: -(rank.lateness_seconds or 0.0))[:MAX_ROWS]
    slow = analysis.costliest_episode
    marked = slow.ranks if slow else ()
    columns = _read_arrivals(latest, analysis)
    rows = zip(*columns.values(), strict=True)
    table = Table(
        tuple(columns),
        tuple(Row(cells, is_marked=int(cells[0]) in marked) for cells in rows),
        1 + ("node" in columns),
    )
    blocks: tuple[Block, ...] = (table,)
    if len(analysis.ranks) > MAX_ROWS:
        blocks = (table, (f"The {MAX_ROWS} latest of {len(analysis.ranks):,} ranks.",))
    # Medians of unknown lateness would be a table of "unknown".
    is_known = any(rank.lateness_seconds is not None for rank in latest)
    first, last = analysis.ranks_over
    return Section(
        title=f"Arrivals at the synchronisation, steps {first} to {last}, in ms",
        hint="Medians over these steps. Who comes late waits least.",
        blocks=blocks if is_known else (),
    )


def _read_arrivals(ranks: Sequence[RankSummary], analysis: StepAnalysis) -> Mapping[str, list[str]]:
    columns = {"rank": [str(rank.rank) for rank in ranks]}
    if any(rank.node for rank in ranks):
        columns["node"] = [rank.node for rank in ranks]
    columns["last in"] = [percent(rank.last_share) for rank in ranks]
    if why_no_arrivals(analysis) is None:
        columns["arrival lag"] = [milliseconds(rank.lag_seconds) for rank in ranks]
        columns["lag p95"] = [milliseconds(rank.lag_p95_seconds) for rank in ranks]
    columns["late"] = [milliseconds(rank.lateness_seconds) for rank in ranks]
    columns["own work"] = [milliseconds(rank.own_work_seconds) for rank in ranks]
    columns["waits"] = [milliseconds(rank.sync_seconds) for rank in ranks]
    return columns


def _tabulate_phases() -> Table:
    rows = tuple(Row((phase, _MEANINGS[phase])) for phase in STEP_PHASES)
    return Table(("phase", "what the rank does"), rows, 2)


def _describe_time(analysis: StepAnalysis) -> Iterator[Section]:
    statement = analysis.goodput
    if why_no_phases(analysis) is None and statement.covered_seconds > 0:
        shares = _make_shares(statement.seconds, analysis.price_per_gpu_hour)
        title = "Where the time of all ranks went"
        yield Section(title=title, hint=_STATES_HINT, blocks=(shares,))
    job = analysis.job
    if job is None or not job.goodput.allocated_gpu_seconds:
        return
    ettr = job.goodput.ettr_ratio
    sentence = (
        f"{plural(job.num_attempts, 'attempt')}, {duration(job.elapsed_seconds)} of wall clock,"
        f" {duration(job.goodput.allocated_gpu_seconds)} of ranks allocated."
        + ("" if ettr is None else f" Effective training time (ETTR): {percent(ettr)}.")
    )
    shares = _make_shares(job.goodput.gpu_seconds, analysis.price_per_gpu_hour)
    largest_first = Shares(tuple(sorted(shares.parts, key=lambda part: -part.seconds)))
    title = "Where the allocated time of the whole job went"
    yield Section(title=title, hint=_JOB_HINT, blocks=(largest_first, (sentence,)))


def _make_shares(seconds_by_state: Mapping[Any, float], price: float | None) -> Shares:
    total = sum(seconds_by_state.values())
    return Shares(
        tuple(
            Share(
                state.replace("_", " "), STATE_COLOURS[state], seconds, seconds / total,
                None if price is None else seconds / SECONDS_PER_HOUR * price,
            )
            for state, seconds in seconds_by_state.items()
            if seconds > 0
        )
    )  # fmt: skip


def _tabulate_endings(endings: Sequence[Ending]) -> Table:
    if not any(map(sentences.has_end, endings)):
        return Table((), (), 0)
    rows = []
    for ending in sorted(endings, key=lambda ending: not ending.first)[:MAX_ROWS]:
        end = ending.signal or "unknown"
        if not ending.signal and ending.exit_code is not None:
            end = f"exit code {ending.exit_code}"
        end += ", the first to fail" if ending.first else ""
        step = "unknown" if ending.last_step is None else str(ending.last_step)
        detail = "\n".join(filter(None, (ending.exception, ending.last_output)))
        rows.append(Row((str(ending.rank), end, ending.phase or "unknown", step), detail=detail))
    return Table(("rank", "end", "last phase", "last step"), tuple(rows), 3)


def _tabulate_clocks(analysis: StepAnalysis) -> Table:
    alignment = analysis.alignment
    furthest = sorted(alignment.offsets.items(), key=lambda pair: -abs(pair[1]))[: 2 * MAX_ROWS]
    rows = [
        *((node or "unnamed", offset) for node, offset in furthest),
        ("left over, median", alignment.residual_seconds),
        ("left over, p95", alignment.residual_p95_seconds),
    ]
    return Table(
        ("node", "clock ahead"), tuple(Row((name, duration(value))) for name, value in rows), 1
    )


_MAX_COLLECTIVES = 1000
_JOB_FIELDS = (
    "job_id", "cluster", "project", "attempt", "world_size", "missing_ranks", "notes",
)  # fmt: skip


def document_steps(analysis: StepAnalysis) -> Document:
    """The document on an analysis."""
    signs = find_signs(analysis)
    replay = None if analysis.replayed is None else analysis.replayed.what_if
    what_if = None if replay is None else describe_replay(replay, analysis)
    all_findings = tuple(findings(analysis))
    stacks = analysis.recording.stacks if analysis.standstills else ()
    steps = analysis.steps
    return Document(
        name=f"job {steps.job_id}, attempt {steps.attempt}",
        headline=all_findings[0].sentence,
        severity=all_findings[0].severity,
        story=write_story(analysis, all_findings),
        facts=_list_facts(analysis),
        cards=step_cards(analysis),
        sections=step_sections(analysis, signs, what_if),
        advice=step_advice(analysis),
        remarks=tuple(filter(None, (describe_end(analysis), *list_caveats(analysis)))),
        links=tuple((f"stacks of rank {rank}", path.as_uri()) for rank, path in stacks),
        published=_publish(analysis, all_findings[0], signs, what_if),
        durations=_measure_durations(analysis),
        key_figures=_list_key_figures(analysis),
        trace_events=partial(step_trace_events, analysis),
    )


def _list_facts(analysis: StepAnalysis) -> tuple[str, ...]:
    steps, begin = analysis.steps, analysis.times.first_step
    facts = [plural(steps.world_size, "rank")]
    facts += [f"cluster {steps.cluster}"] if steps.cluster else []
    facts += [] if begin is None else [f"began {clock(begin)} UTC"]
    return (*facts, f"read from {analysis.recording.source_kind.replace('_', ' ')}")


def _measure_durations(analysis: StepAnalysis) -> Mapping[str, Matrix]:
    """Seconds [steps] of the whole step and, as medians over the ranks, of its phases.

    Of a thinned job by minute instead, for what is whole there is not like the rest.
    """
    if analysis.recording.thinned is None:
        phases = analysis.steps.phases.items()
        medians = {phase: nan_stats.median(seconds, axis=0) for phase, seconds in phases}
        medians["step"] = analysis.scores.step_seconds
    else:
        medians = dict(analysis.recording.thinned.medians)
    return {name: seconds for name, seconds in medians.items() if np.nansum(seconds) > 0}


def _list_key_figures(analysis: StepAnalysis) -> Mapping[str, float | None]:
    """Goodput and loss; amounts per step, because two runs differ in length."""
    cost, count = analysis.cost, analysis.summary.count
    lost_money = cost.lost_money
    return {
        "goodput_ratio": analysis.goodput.ratio,
        "lost_ratio": cost.lost_ratio,
        "lost_gpu_seconds_per_step": cost.lost_gpu_seconds / count if count else None,
        "lost_money_per_step": None if lost_money is None or not count else lost_money / count,
    }


def _publish(
    analysis: StepAnalysis, finding: Finding, signs: Sequence[Sign], what_if: WhatIfFigures | None
) -> published.StepsReport:
    steps, log, alignment = analysis.steps, analysis.recording.collectives, analysis.alignment
    report = published.StepsReport(
        headline=finding.sentence,
        severity=finding.severity,
        source=published.Source(kind=analysis.recording.source_kind),
        **{name: getattr(steps, name) for name in _JOB_FIELDS},
        attempts=analysis.other_attempts,
        outcome=analysis.outcome,
        verdict=analysis.verdict,
        standstills=analysis.standstills,
        episodes=tuple(_publish_episode(analysis, episode) for episode in analysis.episodes),
        losses=tuple(_publish_loss(analysis, loss) for loss in analysis.losses),
        steps=analysis.summary,
        **asdict(analysis.times),
        **asdict(analysis.cost),
        price_per_gpu_hour=analysis.price_per_gpu_hour,
        causes=causes(analysis.goodput, analysis.price_per_gpu_hour),
        goodput={**analysis.goodput.seconds, "ratio": analysis.goodput.ratio},
        job_goodput=None if analysis.job is None else _publish_goodput(analysis.job),
        signs=tuple(signs),
        ranks=analysis.ranks,
        ranks_over=analysis.ranks_over,
        endings=analysis.endings,
        alignment=Clocks(**_copy(alignment, Clocks)),
        collectives=None if log is None else log.items[:_MAX_COLLECTIVES],
        what_if=what_if,
        unknown={},
    )
    return with_reasons(report, step_reasons(analysis))


def _publish_goodput(job: WholeJob) -> published.JobGoodput:
    return published.JobGoodput(
        attempts=job.num_attempts,
        elapsed_seconds=job.elapsed_seconds,
        allocated_gpu_seconds=job.goodput.allocated_gpu_seconds,
        productive_ratio=job.goodput.productive_ratio,
        ettr_ratio=job.goodput.ettr_ratio,
        gpu_seconds=job.goodput.gpu_seconds,
    )


def _publish_loss(analysis: StepAnalysis, loss: Loss) -> published.LostTime:
    part = cost(analysis.steps, analysis.scores, (loss,), analysis.price_per_gpu_hour)
    return published.LostTime(
        **_copy(loss, Loss), lost_gpu_seconds=part.lost_gpu_seconds, lost_money=part.lost_money
    )


def _publish_episode(analysis: StepAnalysis, episode: Episode) -> published.SlowEpisode:
    begin, end = analysis.episode_span(episode)
    return published.SlowEpisode(
        **_copy(episode, EpisodeRecord),
        lost_seconds=episode.lost_seconds,
        start_time=begin,
        end_time=end,
        lost_ratio=analysis.lost_step_ratio(episode),
    )


def _copy(value: Any, kind: type[Any]) -> dict[str, Any]:
    """The fields of a value that a base class of it declares."""
    return {field.name: getattr(value, field.name) for field in fields(kind)}
