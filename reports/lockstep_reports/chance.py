"""How likely chance alone is: an upper bound of the binomial tail, good at any size."""

import math


def tail_bound(hits: float, trials: float, share: float) -> float:
    """At most this likely: ``hits`` or more of ``trials``, each hit with probability ``share``.

    Chernoff's bound. It is exact when every trial hits, and never too small.
    """
    if trials == 0 or hits <= share * trials or share >= 1:
        return 1.0
    seen = hits / trials
    divergence = seen * math.log(seen / share)
    if seen < 1:
        divergence += (1 - seen) * math.log((1 - seen) / (1 - share))
    return math.exp(-trials * divergence)
