"""PromQL of slices: was a job as good as it had been itself?

A slice is the five minutes before an evaluation. Jobs differ in everything, so that a job is held
against its own best hour of the last day, and never against another job. Checkpoints and
evaluations are no slow steps: the quantities are taken over the time of the other phases. What has
no answer, such as the tokens of a job that stands still, has no slice.
"""

from lockstep_alerts.rules.parameters import Expressions, Parameters
from lockstep_catalogue import ledger, recorded, training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, KIND, PHASE, RANK
from lockstep_catalogue.promql import by, eq, names, one_of, rate, select

SLICE_SECONDS = 300
"""Twenty scrapes at 15 s and five at a minute: a rate over fewer moves by more than a slice may."""
SUSTAINED, BASELINE = "1h", "1d"
HIGHER_IS_BETTER = ("throughput", "bus_bandwidth")
LOWER_IS_BETTER = ("step_latency", "gradient_sync", "cost")
BASELINE_SLOS = (*HIGHER_IS_BETTER, *LOWER_IS_BETTER)
"""Objectives whose slices are held against the job's own baseline."""
_OTHER_RATIO = 1.2
"""Tokens a step times ranks that differ by more are another configuration of the job."""
_PAUSES = ("checkpoint", "eval")

_JOB = (CLUSTER, JOB_ID)
_SLICE_LABELS = (*_JOB, ledger.SLO)
_JOB_JOIN = f"on ({names(*_JOB)})"
_SLICE_JOIN = f"on ({names(*_SLICE_LABELS)})"


def name_objective(expression: str, slo: str) -> str:
    """PromQL with the objective as a label."""
    return f'label_replace({expression}, "{ledger.SLO.name}", "{slo}", "", "")'


# All ranks and phases are read once: the quantities below are quotients of these.


def _stepping() -> str:
    """Seconds a second that the ranks of a job spend in steps, without checkpoints and so on."""
    phases = tuple(phase for phase in PHASE.values if phase not in _PAUSES)
    return by("sum", select(recorded.JOB_PHASES, one_of(PHASE, *phases)), *_JOB)


def _values(rules: Parameters) -> dict[str, str]:
    slices, hour = rules.windows.cover(SLICE_SECONDS), rules.windows.cover(3600)
    stepping = _stepping()
    steps = by("sum", rate(training.STEPS, slices), *_JOB)
    tokens = by("sum", rate(training.TOKENS, slices), *_JOB)
    ranks = by("count", by("group", select(training.RANK_INFO), *_JOB, RANK), *_JOB)
    synced = by("sum", select(recorded.JOB_PHASES, eq(PHASE, "sync")), *_JOB)
    bus = by("avg", f"avg_over_time({select(training.BUS_RATE)}[{slices}])", *_JOB, KIND)
    tokens_of_hour = by("sum", rate(training.TOKENS, hour), *_JOB)
    return {
        "throughput": f"({tokens} > 0) / ({stepping} > 0)",
        "step_latency": f"{stepping} / ({steps} > 0)",
        "gradient_sync": f"clamp_min({synced} / ({stepping} > 0), {rules.limits.min_sync_ratio:g})",
        # The kind that moves most of the bytes: a broadcast of a few values says nothing.
        "bus_bandwidth": by("max", bus, *_JOB) + " > 0",
        "cost": f"{ranks} / ({tokens_of_hour} > 0)",
    }


def _value(rules: Parameters) -> str:
    return "\nor\n".join(name_objective(text, slo) for slo, text in _values(rules).items())


def _sustained(rules: Parameters) -> str:
    value = select(recorded.SLICE_VALUE)
    enough = f"count_over_time({value}[{SUSTAINED}]) >= {rules.limits.min_baseline_slices}"
    return f"quantile_over_time(0.5, {value}[{SUSTAINED}]) and {enough}"


def _configuration(rules: Parameters) -> str:
    slices = rules.windows.cover(SLICE_SECONDS)
    tokens, steps = (
        by("sum", rate(each, slices), *_JOB) for each in (training.TOKENS, training.STEPS)
    )
    return (
        f"{tokens} / ({steps} > 0) * {_JOB_JOIN} {by('max', select(training.WORLD_RANKS), *_JOB)}"
    )


def _baseline(_: Parameters) -> str:
    higher = select(recorded.SLICE_SUSTAINED, one_of(ledger.SLO, *HIGHER_IS_BETTER))
    lower = select(recorded.SLICE_SUSTAINED, one_of(ledger.SLO, *LOWER_IS_BETTER))

    def best(window: str, unchanged: str) -> str:
        over = f"{select(recorded.SLICE_CONFIGURATION)}[{unchanged}]"
        other = f"max_over_time({over}) > {_OTHER_RATIO:g} * min_over_time({over})"
        best = f"max_over_time({higher}[{window}]) or min_over_time({lower}[{window}])"
        return f"({best}) unless {_JOB_JOIN} ({other})"

    # A resized job, or one with another batch or context, is held against itself as it is now.
    return f"{best(BASELINE, '25h')}\nor\n{best('3h', '4h')}"


def _ratio(_: Parameters) -> str:
    def pair(*slos: str) -> tuple[str, str]:
        return (
            select(recorded.SLICE_VALUE, one_of(ledger.SLO, *slos)),
            select(recorded.SLICE_BASELINE, one_of(ledger.SLO, *slos)),
        )

    (higher, best), (lower, least) = pair(*HIGHER_IS_BETTER), pair(*LOWER_IS_BETTER)
    return f"{higher} / {_SLICE_JOIN} ({best} > 0)\nor\n{least} / {_SLICE_JOIN} ({lower} > 0)"


def _interval(_: Parameters) -> str:
    # From checkpoint to checkpoint: neither a long gap now nor the age of the job changes it.
    over = f"{select(recorded.LAST_DURABLE)}[{BASELINE}]"
    span = f"(max_over_time({over}) - min_over_time({over}))"
    # Of a job that writes no more the interval is remembered as long as the job is seen.
    is_seen = f"and {_JOB_JOIN} {select(recorded.LAST_DURABLE)}"
    remembered = f"last_over_time({select(recorded.CHECKPOINT_INTERVAL)}[1h]) {is_seen}"
    return f"{span} / (changes({over}) > 0)\nor\n{remembered}"


EXPRESSIONS: Expressions = {
    recorded.JOB_PHASES: lambda rules: by(
        "sum", rate(training.PHASE_SECONDS, rules.windows.cover(SLICE_SECONDS)), *_JOB, PHASE
    ),
    recorded.SLICE_VALUE: _value,
    recorded.SLICE_SUSTAINED: _sustained,
    recorded.SLICE_CONFIGURATION: _configuration,
    recorded.SLICE_BASELINE: _baseline,
    recorded.SLICE_RATIO: _ratio,
    recorded.LAST_DURABLE: by("max", select(training.LAST_CHECKPOINT), *_JOB),
    recorded.CHECKPOINT_INTERVAL: _interval,
}
