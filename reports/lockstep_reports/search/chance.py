"""How likely chance alone is: upper bounds of tails, good at any size and for any noise."""

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


def gathered(hits: int, inside: int, all_hits: int, everywhere: int) -> float:
    """How likely ``hits`` or more of all hits fall into some steps when any step may have them.

    The tail of the hypergeometric distribution: Fisher's exact test.

    Args:
        hits: hits in the stretch.
        inside: steps of the stretch.
        all_hits: hits in the stretch and outside.
        everywhere: steps in the stretch and outside.
    """
    if hits <= all_hits * inside / max(1, everywhere):
        return 1.0
    whole = _log_choose(everywhere, all_hits)
    most = min(inside, all_hits)
    terms = (
        _log_choose(inside, at) + _log_choose(everywhere - inside, all_hits - at) - whole
        for at in range(hits, most + 1)
    )
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def _log_choose(many: int, few: int) -> float:
    if not 0 <= few <= many:
        return -math.inf
    return math.lgamma(many + 1) - math.lgamma(few + 1) - math.lgamma(many - few + 1)
