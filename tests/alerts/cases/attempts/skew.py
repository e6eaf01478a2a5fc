from lockstep_alerts.conditions.attempts.skew import DataSkew

from ..case import Case, proves
from ..synthetic import JOB, Timing, loads


@proves(DataSkew)
def data_skew(condition: DataSkew, timing: Timing) -> list[Case]:
    above, below = 1.1 * (1 + condition.above_ratio), 1 + 0.5 * condition.above_ratio
    lasting = timing.fires_by_seconds
    return [
        Case("one rank has more tokens", loads(above, lasting), {**JOB, "load": "tokens"}),
        Case("by less than that", loads(below, lasting)),
        Case("one sequence is long", loads(above, lasting, "longest_sequence")),
    ]
