"""The report as one self-contained page: no network, no other file."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from lockstep_reports.figures import PHASE_COLOURS, figures, plotly_script
from lockstep_reports.headline import caveats, grounds, headline, how_ended, story
from lockstep_reports.judge import whom
from lockstep_reports.report import Report, lost_step_ratio
from lockstep_reports.whatif.told import repaired, what_if_json
from lockstep_reports.wording import clock, duration, milliseconds, percent, plural

_MOST_RANKS = 64
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
    "straggler_wait": "#a3264a",
    "synchronisation": "#d5dbe2",
    "input": "#56b4e9",
    "checkpoint": "#cc79a7",
    "evaluation": "#f0e442",
    "other": "#7f7f7f",
    "unknown": "#ffffff",
}


def as_html(report: Report) -> str:
    """The whole page. Everything that came from records is escaped by the template."""
    environment = Environment(
        loader=PackageLoader("lockstep_reports"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "clock": clock,
        "duration": duration,
        "milliseconds": milliseconds,
        "percent": percent,
    }
    return environment.get_template("report.html.j2").render(**_content(report))


def _content(report: Report) -> dict[str, Any]:
    return {
        "report": report,
        "steps": report.steps,
        "headline": headline(report),
        "story": story(report),
        "how_ended": how_ended(report),
        "grounds": grounds(report),
        "caveats": caveats(report),
        "cards": _cards(report),
        "episodes": _episodes(report),
        "ranks": _latest(report),
        "culprits": report.worst.ranks if report.worst else (),
        "states": _states(report),
        "glossary": GLOSSARY,
        "phase_colours": PHASE_COLOURS,
        "figures": figures(report),
        "what_if": _what_if(report),
        "plotly_script": plotly_script(),
    }


def _cards(report: Report) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a remark."""
    cost, summary, steps = report.cost, report.summary, report.steps
    cards = [
        (duration(cost.lost_seconds), "lost", f"{percent(cost.lost_ratio)} of the run"),
        (duration(cost.lost_gpu_seconds), "over all ranks", plural(steps.world_size, "rank")),
        (
            duration(summary.median_seconds),
            "median step",
            f"p95 {duration(summary.p95_seconds)}",
        ),
        (f"{summary.count:,}", "steps", f"{summary.first} to {summary.last}"),
        (percent(report.goodput.ratio), "productive", "of the time of all ranks"),
    ]
    if cost.lost_money is not None:
        price = f"at {report.price_per_gpu_hour:g} a GPU-hour"
        cards.insert(2, (f"{cost.lost_money:,.2f}", "lost money", price))
    return cards


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
            "span": report.span(episode),
            "ratio": lost_step_ratio(report, episode),
        }
        for episode in report.episodes
    ]


def _latest(report: Report) -> list[Any]:
    """The latest ranks, by rank."""
    by_lateness = sorted(report.ranks, key=lambda line: -(line.lateness_seconds or 0.0))
    return sorted(by_lateness[:_MOST_RANKS], key=lambda line: line.rank)


def _states(report: Report) -> list[dict[str, Any]]:
    covered = report.goodput.covered_seconds
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
