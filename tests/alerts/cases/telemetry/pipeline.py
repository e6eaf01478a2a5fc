from lockstep_alerts.conditions.telemetry.pipeline import AlwaysFiring

from ..case import Case, proves
from ..synthetic import Timing


@proves(AlwaysFiring)
def always_firing(condition: AlwaysFiring, timing: Timing) -> list[Case]:
    return [
        Case("nothing is scraped", [], {}),
        Case("Prometheus has just started", [], at_seconds=0),
    ]
