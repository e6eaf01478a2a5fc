"""The ledger takes events, but refuses some, cannot settle a job, has errors, or is slow."""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.reading.quantities import Window, number
from lockstep_catalogue import foreign, ledger
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import by, eq, histogram_quantile, increase, none_of, select
from lockstep_catalogue.windows import ScrapeWindows

_INSTANCE: Label = foreign.TARGET_INSTANCE
_QUANTILE = 0.95
# A token that is refused is somebody without access, and an event that is sent again no loss.
_HARMLESS = ("finished", "token")


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
