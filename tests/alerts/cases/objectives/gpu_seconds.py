from lockstep_alerts.objectives.gpu_seconds import GpuSecondBurn
from lockstep_alerts.objectives.limits import BurnLimit
from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_catalogue.recorded import PERIOD

from ..case import Case, proves
from ..synthetic import Samples, Timing
from .counts import counts, labels_of

_MARGIN = 0.01  # of all GPU-seconds, above and below a limit


@proves(GpuSecondBurn)
def gpu_second_burn(condition: GpuSecondBurn, timing: Timing) -> list[Case]:
    first, bad_ratio = condition.limits[0], condition.objective.bad_ratio
    gpus = 2 * condition.objective.min_gpus
    above = {each: each.bad_share(bad_ratio) + _MARGIN for each in condition.limits}
    high, low = above[first], above[first] - 2 * _MARGIN

    def job(limit: BurnLimit, share: float, recent: float, num_gpus: float) -> list[Samples]:
        total, bad = round(num_gpus * SLO_WINDOWS[PERIOD]), _bad(limit, share, recent, num_gpus)
        return counts(timing, condition.objective.slo, total, bad)

    return [
        *(
            Case(
                f"{each.window} above its limit",
                job(each, share, share, gpus),
                labels_of(condition.objective.slo, each.window),
            )
            for each, share in above.items()
        ),
        Case("below the limit", job(first, low, low, gpus)),
        Case("the last minutes are good", job(first, high, 0, gpus)),
        Case("too few GPUs", job(first, high, high, condition.objective.min_gpus / 2)),
        Case("nothing ran", job(first, 0, 0, 0)),
    ]


def _bad(limit: BurnLimit, share: float, recent: float, num_gpus: float) -> dict[str, int]:
    """Bad GPU-seconds by window, with shares of their own before and in the recent one."""
    return {
        window: round(
            num_gpus * seconds * (recent if seconds <= SLO_WINDOWS[limit.recent] else share)
        )
        for window, seconds in SLO_WINDOWS.items()
        if seconds <= SLO_WINDOWS[limit.window]
    }
