from lockstep_alerts.conditions.telemetry.ledger_service import LedgerImpaired
from lockstep_catalogue import ledger

from ..case import Case, proves
from ..synthetic import Samples, Timing, samples

_LEDGER = {"instance": "ledger:9450"}


@proves(LedgerImpaired)
def ledger_impaired(condition: LedgerImpaired, timing: Timing) -> list[Case]:
    def refuses(reason: str) -> list[Samples]:
        return [samples(ledger.REFUSED, timing.steps_up(3), **_LEDGER, refusal=reason)]

    status = {**_LEDGER, "http_status": "5xx"}
    errors = samples(ledger.REQUESTS, timing.steps_up(3), **status)
    aside = samples(ledger.JOBS_ASIDE, timing.steps_up(1), **_LEDGER)
    return [
        Case("it refuses events", refuses("value"), _LEDGER),
        Case("it has errors", [errors], _LEDGER),
        Case("it leaves a job aside", [aside], _LEDGER),
        Case("it is slow", _commits(timing, is_slow=True), _LEDGER),
        Case("an event comes after its job", refuses("finished")),
        Case("it is quick", _commits(timing, is_slow=False)),
    ]


def _commits(timing: Timing, *, is_slow: bool) -> list[Samples]:
    """Ten commits a second, all in the first bucket or all in the last."""
    bounds = [*(f"{bound:g}" for bound in ledger.COMMIT_DURATION.buckets), "+Inf"]
    return [
        samples(
            ledger.COMMIT_DURATION,
            timing.steady(0) if is_slow and bound != "+Inf" else timing.counts(10),
            "_bucket",
            **_LEDGER,
            le=bound,
        )
        for bound in bounds
    ]
