"""Upper bounds of the probability of a count by chance, good at any size and for any noise."""

import math


def tail_bound(hits: float, trials: float, share: float) -> float:
    """Bound of the probability of ``hits`` or more of ``trials``.

    Null hypothesis: each trial hits with a probability of at most ``share``, independently of the
    others. Nothing is assumed of how the noise behind a hit is distributed.

    Chernoff's bound exp(-n D(h/n || p)), with D the relative entropy of two coins. Unlike a normal
    approximation it is never too small, also for few trials and tiny probabilities; it is exact
    when every trial hits. ``hits`` and ``trials`` may be fractions, for trials that are worth less
    than one independent trial.
    """
    if trials == 0 or hits <= share * trials or share >= 1:
        return 1.0
    hit_share = hits / trials
    divergence = hit_share * math.log(hit_share / share)
    if hit_share < 1:
        divergence += (1 - hit_share) * math.log((1 - hit_share) / (1 - share))
    return math.exp(-trials * divergence)


def fisher_tail(hits: int, inside: int, all_hits: int, num_steps: int) -> float:
    """Probability that ``hits`` or more of all hits fall into a stretch.

    Null hypothesis: each of ``all_hits`` hits may lie in any step with equal probability, so the
    stretch is a place like any other. Nothing is assumed of how often steps hit. It is the upper
    tail of the hypergeometric distribution: Fisher's exact test.

    Args:
        hits: hits in the stretch.
        inside: steps of the stretch.
        all_hits: hits in the stretch and outside.
        num_steps: steps in the stretch and outside.
    """
    if hits <= all_hits * inside / max(1, num_steps):
        return 1.0
    num_ways = _log_choose(num_steps, all_hits)
    # Logarithms, because the binomial coefficients of a few thousand steps overflow.
    terms = (
        _log_choose(inside, k) + _log_choose(num_steps - inside, all_hits - k) - num_ways
        for k in range(hits, min(inside, all_hits) + 1)
    )
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def _log_choose(n: int, k: int) -> float:
    if not 0 <= k <= n:
        return -math.inf
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
