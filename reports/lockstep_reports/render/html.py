"""The report as one self-contained page: no network, no other file."""

from typing import Any

from lockstep_reports.compare import Comparison
from lockstep_reports.render.figures import figures, plotly_script, shown_as
from lockstep_reports.render.headline import caveats, ended, grounds, headline, how_ended, story
from lockstep_reports.render.missing_reasons import why_no_arrivals, why_no_phases
from lockstep_reports.render.page_templates import page
from lockstep_reports.render.palette import PHASE_COLOURS
from lockstep_reports.report import Report, lost_step_ratio
from lockstep_reports.summary import Ending
from lockstep_reports.verdict.verdict import whom
from lockstep_reports.whatif.payload import repaired, what_if_json
from lockstep_reports.wording import duration, percent, plural

_MOST_RANKS = 64
_HEAT_MAPS = {
    "lateness": {
        "title": "Who was late, step by step",
        "hint": "Milliseconds by which each rank came later to the synchronisation than the"
        " earliest one.",
    },
    "own": {
        "title": "Who was slower than usual, step by step",
        "hint": "How much longer than its own median each worker took, in percent.",
    },
    "nothing": {"title": "", "hint": ""},
}
_STEP_HINTS = {
    "lateness": "All ranks share it, so it tells when, not who.",
    "own": "Median over the workers, whose times are their own.",
    "nothing": "One series stands for the whole job.",
}
GLOSSARY = {
    "data": "waiting for the next batch",
    "forward": "forward pass",
    "backward": "backward pass until the last local gradient is ready",
    "sync": "from the own arrival at the collectives to their completion: waiting and transfer",
    "optimizer": "optimizer step",
    "checkpoint": "writing a checkpoint",
    "eval": "evaluation",
    "other": "host work between the others",
}
STATE_COLOURS = {
    "productive": "#009e73",
    "startup": "#e69f00",
    "straggler_wait": "#a3264a",
    "communication": "#d5dbe2",
    "data_wait": "#56b4e9",
    "checkpoint": "#cc79a7",
    "evaluation": "#f0e442",
    "other": "#7f7f7f",
    "unknown": "#ffffff",
}


def as_html(report: Report, comparison: Comparison | None = None) -> str:
    """The whole page."""
    return page("report.html.j2", report, comparison, **_content(report))


def _content(report: Report) -> dict[str, Any]:
    drawn = figures(report)
    return {
        "steps": report.steps,
        "headline": headline(report),
        "story": story(report),
        "how_ended": how_ended(report),
        "grounds": grounds(report),
        "caveats": caveats(report),
        "cards": _cards(report),
        "episodes": _episodes(report),
        "ranks": _latest(report),
        "arrivals_known": why_no_arrivals(report) is None,
        "clocks": _clocks(report),
        "heat_map": _HEAT_MAPS[shown_as(report)],
        "step_hint": _STEP_HINTS[shown_as(report)],
        "culprits": report.worst.ranks if report.worst else (),
        "states": _states(report),
        "glossary": GLOSSARY,
        "ends_told": any(_is_told(ending) for ending in report.endings),
        "phase_colours": PHASE_COLOURS,
        "figures": drawn,
        "what_if": _what_if(report),
        "plotly_script": plotly_script() if drawn else "",
    }


def _cards(report: Report) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a remark."""
    cost, summary, steps = report.cost, report.summary, report.steps
    cards = []
    if report.verdict.kind != "unknown" and summary.count:
        cards += [
            (duration(cost.lost_seconds), "lost", f"{percent(cost.lost_ratio)} of the run"),
            (duration(cost.lost_gpu_seconds), "over all ranks", plural(steps.world_size, "rank")),
        ]
        if cost.lost_money is not None:
            price = f"at {report.price_per_gpu_hour:g} a GPU-hour"
            cards.append((f"{cost.lost_money:,.2f}", "lost money", price))
    if summary.median_seconds is not None:
        p95 = "" if summary.p95_seconds is None else f"p95 {duration(summary.p95_seconds)}"
        cards.append((duration(summary.median_seconds), "median step", p95))
    if summary.count:
        cards.append((f"{summary.count:,}", "steps", f"{summary.first} to {summary.last}"))
    if why_no_phases(report) is None and report.goodput.ratio is not None:
        cards.append((percent(report.goodput.ratio), "productive", "of the time of all ranks"))
    return cards


def _is_told(ending: Ending) -> bool:
    """Whether anything is known of how the rank ended."""
    told = (ending.exit_code, ending.signal, ending.last_step)
    return any(value is not None for value in told)


def _clocks(report: Report) -> list[tuple[str, float]]:
    """The clocks that are furthest off."""
    return sorted(report.alignment.offsets.items(), key=lambda line: -abs(line[1]))[:_MOST_RANKS]


def _what_if(report: Report) -> dict[str, Any] | None:
    """Sentences and repairs of a replay; None without operation rows that could be replayed."""
    if report.replayed is None or report.replayed.what_if is None:
        return None
    told = what_if_json(report.replayed, report)
    repairs = [told["worst_workers"], *told["stages"].values()] if told else []
    return {
        "told": told,
        "repairs": [
            {
                "who": repaired(report.replayed.what_if, repair["ranks"]),
                **repair,
            }
            for repair in repairs
            if (repair["removed_ratio"] or 0) > 0
        ],
    }


def _episodes(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "who": whom(episode),
            "told": episode,
            "ended": ended(report, episode),
            "span": report.span(episode),
            "ratio": lost_step_ratio(report, episode),
        }
        for episode in report.episodes
    ]


def _latest(report: Report) -> list[Any]:
    """The latest ranks, by rank."""
    if all(line.lateness_seconds is None for line in report.ranks):
        return []
    by_lateness = sorted(report.ranks, key=lambda line: -(line.lateness_seconds or 0.0))
    return sorted(by_lateness[:_MOST_RANKS], key=lambda line: line.rank)


def _states(report: Report) -> list[dict[str, Any]]:
    covered = report.goodput.covered_seconds
    if why_no_phases(report) is not None:
        return []
    return [
        {
            "name": state.replace("_", " "),
            "colour": STATE_COLOURS[state],
            "seconds": seconds,
            "ratio": seconds / covered,
        }
        for state, seconds in report.goodput.seconds.items()
        if covered > 0
    ]
