"""The ledger takes events, but refuses some, cannot settle a job, has errors, or is slow."""

from dataclasses import dataclass
from typing import Annotated

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.synthetic import Samples, Timing, samples
from lockstep_alerts.reading.quantities import Window, number
from lockstep_catalogue import foreign, ledger
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import by, eq, histogram_quantile, increase, none_of, select
from lockstep_catalogue.windows import ScrapeWindows

_LEDGER = {"instance": "ledger:9450"}
_INSTANCE: Label = foreign.TARGET_INSTANCE
_QUANTILE = 0.95
# A token that is refused is somebody without access, and an event that is sent again no loss.
_HARMLESS = ("finished", "token")


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerImpaired(Condition):
    """Ledgers that refuse events, leave jobs aside, have errors, or commit in ``above_seconds``.

    Attributes:
        window: over which refusals, errors and commits are counted.
        above_seconds: duration that 95 % of the commits stay below.
    """

    window: Window
    above_seconds: Annotated[float, number(0, 60)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Ledgers by their address."""
        window = self.window.text
        refusals = none_of(ledger.REFUSAL, *_HARMLESS)
        # A count that falls again and again is that of two processes behind one address.
        flaps = f"resets({select(ledger.REFUSED, refusals)}[{window}]) > 1"
        refused = f"({increase(ledger.REFUSED, window, refusals)} unless {flaps})"
        failed = increase(ledger.REQUESTS, window, eq(ledger.HTTP_STATUS, "5xx"))
        letters = f"delta({select(ledger.DEAD_LETTERS)}[{window}])"
        aside = select(ledger.JOBS_ASIDE)
        commits = histogram_quantile(_QUANTILE, ledger.COMMIT_DURATION, window, _INSTANCE)
        slow = f"{commits} > {self.above_seconds:g}"
        grown = " or ".join(f"{sign} > 0" for sign in (refused, failed, letters, aside))
        return by("group", f"{grown} or {slow}", _INSTANCE)

    def cases(self, timing: Timing) -> list[Case]:
        def refuses(reason: str) -> list[Samples]:
            return [samples(ledger.REFUSED, timing.steps_up(3), **_LEDGER, refusal=reason)]

        status = {**_LEDGER, "http_status": "5xx"}
        errors = samples(ledger.REQUESTS, timing.steps_up(3), **status)
        aside = samples(ledger.JOBS_ASIDE, timing.steps_up(1), **_LEDGER)
        return [
            Case("it refuses events", refuses("value"), _LEDGER),
            Case("it has errors", [errors], _LEDGER),
            Case("it leaves a job aside", [aside], _LEDGER),
            Case("it is slow", self._commits(timing, is_slow=True), _LEDGER),
            Case("an event comes after its job", refuses("finished")),
            Case("it is quick", self._commits(timing, is_slow=False)),
        ]

    def _commits(self, timing: Timing, *, is_slow: bool) -> list[Samples]:
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
