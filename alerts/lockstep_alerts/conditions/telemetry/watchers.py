"""Health of the ledger's counts and of the evaluation of the rules."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import CLUSTER_JOIN
from lockstep_alerts.reading.quantities import Ratio, Window
from lockstep_catalogue import feeds, foreign, ledger
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.promql import Matcher, by, increase, names, select
from lockstep_catalogue.windows import ScrapeWindows, spelled

_LEDGER_MEMORY = "3d"
_GROUP_JOIN = f"on ({names(CLUSTER, foreign.TARGET_INSTANCE, foreign.RULE_GROUP)})"
_LEDGERS = Matcher(foreign.TARGET_JOB, "=~", ".*lockstep-ledger")


class LedgerStale(Condition):
    """Clusters whose ledger has counts older than ``above``, or does not answer."""

    DETECTED_AFTER = "above"

    above: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Clusters whose ledger answers with old counts, or no longer answers."""
        jobs = select(ledger.JOBS)
        instance = foreign.TARGET_INSTANCE.name
        # The time of the counts has no cluster: it is joined through the ledger's address. Two
        # ledgers behind one address have counts of different age: the newest of the window counts.
        lately = f"max_over_time({select(ledger.REFRESHED)}[{windows.live}])"
        age = f"min by ({instance}) (time() - {lately})"
        recent = by("group", f"last_over_time({jobs}[{_LEDGER_MEMORY}])", CLUSTER)
        old = f"{jobs} and on ({instance}) ({age} > {self.above.seconds})"
        up = f"max_over_time({select(foreign.UP, _LEDGERS)}[{windows.live}])"
        dead = f"{by('max', up, CLUSTER)} == 0"
        # Where Prometheus hears of nothing at all it is not the ledger that is away.
        gone = f"({recent} unless {CLUSTER_JOIN} {jobs} and on () (count({select(foreign.UP)})))"
        return f"{by('group', old, CLUSTER)}\nor\n{dead}\nor\n{gone}"


class FeedBehind(Condition):
    """Clusters whose scheduler the ledger has not heard for ``above``.

    Attributes:
        above: time since a feed asked its scheduler with success.
    """

    DETECTED_AFTER = "above"

    above: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Feeds whose newest answer is old; the ledger forgets them when it is started again."""
        del windows
        recent = f"last_over_time({select(feeds.ASKED)}[{_LEDGER_MEMORY}])"
        return f"time() - {by('max', recent, CLUSTER, feeds.FEED)} > {self.above.seconds}"


class RulesSlow(Condition):
    """Groups of rules that take more than ``above_ratio`` of their interval, or fail.

    Attributes:
        above_ratio: duration of an evaluation as a share of its interval.
    """

    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Groups of rules that are late, were skipped, or of which a rule fails."""
        window = spelled(max(300, 4 * windows.scrape_seconds))
        interval = f"({self.above_ratio:g} * {select(foreign.GROUP_INTERVAL)})"
        late = f"{select(foreign.GROUP_DURATION)} > {_GROUP_JOIN} {interval}"
        counted = " or ".join(
            f"{increase(counter, window)} > 0"
            for counter in (foreign.GROUP_MISSED, foreign.RULE_FAILURES)
        )
        labels = (CLUSTER, foreign.TARGET_INSTANCE, foreign.RULE_GROUP)
        return by("group", f"{late} or {counted}", *labels)
