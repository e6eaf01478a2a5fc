"""The sentences of a report on steps: story, evidence, caveats, end; and its cards."""

from collections import defaultdict
from collections.abc import Sequence

from lockstep_outcomes.uneven_ends import find_uneven_end
from lockstep_reports.analysis.signs import Sign
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.analysis.summary import Ending
from lockstep_reports.document.headline import Finding
from lockstep_reports.document.model import Card
from lockstep_reports.document.published import why_no_phases
from lockstep_reports.verdict.sentences import OWNERS, loss_words
from lockstep_reports.verdict.verdict import Episode
from lockstep_reports.wording import clock, duration, percent, plural


def write_story(analysis: StepAnalysis, findings: Sequence[Finding]) -> str:
    """The sentences after the headline: its details, then what else is true of the job."""
    first, *others = findings
    sentences = [
        *first.details,
        *write_shares(analysis),
        *(_episode_story(analysis) if first.severity == "slow" else ()),
    ]
    says_all = analysis.verdict.kind in {"in_turns", "planned", "rare"}
    if first.severity == "slow" and analysis.costliest_episode is None and not says_all:
        # Without an episode the first piece of evidence says why.
        sentences += analysis.verdict.evidence[:1]
    for finding in others:
        sentences += (finding.sentence, *finding.details)
    return " ".join(sentences)


def write_shares(analysis: StepAnalysis) -> tuple[str, ...]:
    """What share of the recorded steps went where, largest first; empty without phases."""
    steps, totals, losses = analysis.steps, analysis.totals, analysis.losses
    seconds = {
        state: value
        for state, value in analysis.goodput.seconds.items()
        if state not in _OUTSIDE_STEPS
    }
    total = sum(seconds.values())
    if why_no_phases(analysis) is not None or total <= 0:
        return ()
    lost, wall = seconds.pop("straggler_wait", 0.0), sum(loss.lost_seconds for loss in losses)
    parts: dict[str, float] = defaultdict(float)
    for loss in losses if lost > 0 else ():
        words = f"waiting for {loss_words(loss, len(steps.members))}"
        parts[words] += lost * loss.lost_seconds / wall
    for cause, taken in totals.host_seconds.items():
        # The late ranks' own part of a loss is in the loss.
        late = sum(each.lost_seconds * each.num_late for each in losses if each.cause == cause)
        held = max(0.0, taken - late)
        parts[OWNERS[cause].share] = held = min(held, seconds["host_bound"])
        seconds["host_bound"] -= held
    parts["collectives"] = transfer = min(totals.transfer_seconds, seconds["communication"])
    seconds["communication"] -= transfer
    words_of = _STATE_WORDS if steps.has_phases else _STATE_WORDS | {"productive": "own work"}
    for state, value in seconds.items():
        parts[words_of.get(state, state.replace("_", " "))] += value
    shares = sorted(parts.items(), key=lambda pair: -pair[1])
    texts = [f"{percent(value / total)} {words}" for words, value in shares if value >= total / 100]
    return (f"Where the steps went: {'; '.join(texts)}.",)


_STATE_WORDS = {
    "productive": "forward, backward and optimizer",
    "communication": "waits for whoever was last, as healthy ranks have too",
    "data_wait": "loading data",
    "other": "work outside the marked phases",
}
_OUTSIDE_STEPS = frozenset({"startup", "hang", "unknown"})


def _episode_story(analysis: StepAnalysis) -> tuple[str, ...]:
    costliest = analysis.costliest_episode
    if costliest is None:
        return ()
    begin, end = analysis.episode_span(costliest)
    until = f"step {costliest.end_step}{_bracket(end)}"
    if costliest.ongoing:
        until = "the last recorded step"
    span = f"From step {costliest.start_step}{_bracket(begin, ' UTC')} to {until} it"
    if analysis.steps.is_independent:
        own = duration(costliest.lost_seconds * len(analysis.steps.members))
        return (f"{span} lost {own} of its own time.", *analysis.verdict.evidence[-2:])
    if costliest.start_step == costliest.end_step and not costliest.ongoing:
        span = f"In step {costliest.start_step}{_bracket(begin, ' UTC')} it"
    sentence = (
        f"{span} cost {duration(costliest.lost_seconds)} of wall time, "
        f"{percent(analysis.lost_step_ratio(costliest))} of each step."
    )
    if analysis.steps.round_steps:
        sentence = sentence.replace("each step", "each round")
        sentence += " The others waited for it at the end of the rounds only."
    num_others = len(analysis.episodes) - 1
    if not num_others:
        return (sentence,)
    lost = duration(analysis.cost.lost_seconds)
    return sentence, f"With {plural(num_others, 'other episode')} the job lost {lost}."


def _bracket(wall_seconds: float | None, zone: str = "") -> str:
    return "" if wall_seconds is None else f" ({clock(wall_seconds)}{zone})"


def list_further_evidence(analysis: StepAnalysis) -> tuple[str, ...]:
    """The evidence that is not part of the story."""
    evidence = analysis.verdict.evidence
    return evidence if analysis.costliest_episode else evidence[1:]


def list_caveats(analysis: StepAnalysis) -> tuple[str, ...]:
    """What was not read, and what was not judged."""
    return (
        *analysis.steps.notes,
        *(analysis.totals.missing if analysis.recording.source_kind == "pages" else ()),
        *(
            f"Attempt {other.number} is not in this report; it {_outcome_phrase(other.outcome)}."
            for other in analysis.other_attempts
        ),
    )


def describe_end(analysis: StepAnalysis) -> str:
    """The end of the attempt, and the first rank to fail; empty where neither was recorded."""
    if analysis.outcome == "unknown" and not any(has_end(ending) for ending in analysis.endings):
        return ""
    # What ranks that had ended left behind is the headline.
    if analysis.outcome == "unknown" and find_uneven_end(analysis.steps.members) is not None:
        return ""
    phrase = _outcome_phrase(analysis.outcome)
    running = {member.is_running for member in analysis.steps.members}
    # Every rank's page had a lock that nobody holds any more.
    if analysis.outcome == "unknown" and running == {False}:
        phrase = "is gone: its processes ended without a word"
    # Without a launcher the pages say so, and nobody knows an exit status.
    if analysis.outcome == "succeeded" and not any(e.exit_code == 0 for e in analysis.endings):
        phrase = "ended normally"
    sentence = f"Attempt {analysis.steps.attempt} {phrase}."
    for ending in analysis.endings:
        if ending.first:
            signal = ending.signal or f"exit code {ending.exit_code}"
            first_ranks = analysis.recording.end.get("cause_ranks") or [ending.rank]
            # Who ended first may have followed from one that stood still.
            how = "fail" if ending.rank in first_ranks else "end"
            sentence += f" Rank {ending.rank} was the first to {how}, by {signal}"
            sentence += f": {ending.exception}." if ending.exception else "."
    # With plain torchrun nobody wrote the order of the ends.
    if not any(ending.first for ending in analysis.endings):
        failed = next((ending for ending in analysis.endings if ending.exception), None)
        if failed is not None:
            sentence += f" Rank {failed.rank} ended with {failed.exception}."
    return sentence


def has_clock(analysis: StepAnalysis) -> bool:
    """Whether any episode has a time of day."""
    return any(analysis.episode_span(episode)[0] is not None for episode in analysis.episodes)


def has_end(ending: Ending) -> bool:
    """Whether anything was recorded of a rank's end."""
    values = (ending.exit_code, ending.signal, ending.last_step)
    return any(value is not None for value in values)


def describe_episode_end(analysis: StepAnalysis, episode: Episode) -> str:
    """End of an episode for a column of a table; a running job may not have reached it."""
    # An episode that reaches the last step ends when the job does, or goes on.
    if not episode.ongoing and not has_clock(analysis):
        return f"step {episode.end_step}"
    if not episode.ongoing:
        return clock(analysis.episode_span(episode)[1])
    if analysis.outcome == "running":
        return "still going"
    return "at the last step" if analysis.outcome == "unknown" else "with the job"


def _outcome_phrase(outcome: str | None) -> str:
    if outcome in {"cancelled", "preempted"}:
        return f"was {outcome}"
    if outcome == "running":
        return "is running"
    if outcome in {None, "unknown"}:
        return "left no word of its end"
    return str(outcome)


def step_cards(analysis: StepAnalysis) -> tuple[Card, ...]:
    """Loss, price, duration and number of the steps, and the productive share; unknown left out."""
    summary = analysis.summary
    figures = [*_loss_cards(analysis)]
    if analysis.standstills:
        stood = sum(standstill.seconds for standstill in analysis.standstills)
        times = plural(len(analysis.standstills), "time")
        figures.insert(0, Card(duration(stood), "without progress", times))
    if summary.median_seconds is not None:
        p95 = "" if summary.p95_seconds is None else f"p95 {duration(summary.p95_seconds)}"
        figures.append(Card(duration(summary.median_seconds), "median step", p95))
    if summary.count:
        figures.append(Card(f"{summary.count:,}", "steps", f"{summary.first} to {summary.last}"))
    # All time of such a recording is unknown, and 0 % productive would be false.
    if why_no_phases(analysis) is None and analysis.goodput.ratio is not None:
        share = percent(analysis.goodput.ratio)
        figures.append(Card(share, "productive", "of the time of all ranks"))
    return tuple(figures)


def _loss_cards(analysis: StepAnalysis) -> list[Card]:
    """None where nobody could be judged: a loss of 0 would look like a finding."""
    cost, num_ranks = analysis.cost, analysis.steps.world_size
    if analysis.verdict.kind == "unknown" or not analysis.summary.count:
        return []
    # Next to minutes without progress it would deny them.
    if analysis.standstills and not cost.lost_seconds:
        return []
    busy = [loss.kind == "busy_host" for loss in analysis.losses]
    label = "lost to busy hosts" if busy and all(busy) else "lost"
    label += ", to busy hosts too" if any(busy) and not all(busy) else ""
    if analysis.steps.is_independent:
        return [Card(percent(cost.lost_ratio), "of the updates lost", "no other rank waited")]
    figures = [
        Card(duration(cost.lost_seconds), label, f"{percent(cost.lost_ratio)} of the run"),
        Card(duration(cost.lost_gpu_seconds), "over all ranks", plural(num_ranks, "rank")),
    ]
    if cost.lost_money is not None:
        currency = f" {analysis.price.currency}".rstrip() if analysis.price else ""
        price = f"at {analysis.price_per_gpu_hour:g}{currency} a GPU-hour"
        figures.append(Card(f"{cost.lost_money:,.2f}", "lost money", price))
    return figures


def sign_sentences(signs: Sequence[Sign]) -> list[str]:
    """A sentence for each sign: what, when, how much, by what source, and whether it is proven."""
    return [
        f"{'Proven' if sign.proven else 'Also then'}: {sign.cause.replace('_', ' ')} on "
        f"{sign.node}, {_describe_span(sign)}, up to {sign.value:,.3g} {sign.unit} "
        f"({sign.source})."
        for sign in signs
    ]


def _describe_span(sign: Sign) -> str:
    if sign.end_time - sign.begin_time < 1:
        return clock(sign.begin_time)
    return f"{clock(sign.begin_time)} to {clock(sign.end_time)}"
