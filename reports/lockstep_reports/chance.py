"""Bounds of the probability of a count by chance, and the noise of a healthy recording.

The noise is modelled by a first-order autoregression: what a step has beyond the usual is
``correlation`` times that of the step before, plus a shock. Size and correlation come from the bulk
of the steps; the tail of the shocks from the largest two in a hundred, so that heavy tails stay
heavy.
"""

import math
from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Cells, Matrix


def tail_bound(hits: float, trials: float, share: float) -> float:
    """Bound of the probability of ``hits`` or more of ``trials``.

    Null hypothesis: each trial hits with a probability of at most ``share``, independently of the
    others. Nothing is assumed of how the noise behind a hit is distributed.

    Chernoff's bound exp(-n D(h/n || p)), with D the relative entropy of two coins. Unlike a normal
    approximation it is never too small, and exact when every trial hits. Both counts may be
    fractions, for trials that are worth less than one independent trial.
    """
    if trials == 0 or hits <= share * trials or share >= 1:
        return 1.0
    hit_share = hits / trials
    divergence = hit_share * math.log(hit_share / share)
    if hit_share < 1:
        divergence += (1 - hit_share) * math.log((1 - hit_share) / (1 - share))
    return math.exp(-trials * divergence)


def fisher_tail(hits: int, inside: int, all_hits: int, num_steps: int) -> float:
    """Probability that ``hits`` or more of all hits fall into the steps ``inside`` of a stretch.

    Null hypothesis: each of ``all_hits`` hits may lie in any of ``num_steps`` steps with equal
    probability, so the stretch is a place like any other. Nothing is assumed of how often steps
    hit. It is the upper tail of the hypergeometric distribution: Fisher's exact test.
    """
    if hits <= all_hits * inside / max(1, num_steps):
        return 1.0

    def log_choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    # Logarithms, because the binomial coefficients of a few thousand steps overflow.
    num_ways, outside = log_choose(num_steps, all_hits), num_steps - inside
    terms = (
        log_choose(inside, k) + log_choose(outside, all_hits - k) - num_ways
        for k in range(max(hits, all_hits - outside), min(inside, all_hits) + 1)
    )
    return min(1.0, math.fsum(map(math.exp, terms)))


# Values beyond so many deviations do not belong to the bulk, which sets the correlation.
_BULK_SIGMAS = 3.0
# Turns a median deviation of normal values into a standard deviation.
_SIGMAS_PER_MEDIAN = 1.4826
# Normal noise is over eight deviations in none of 10^15 steps, lognormal noise in one of 1,000.
_SIGMAS = 8.0


# Independence is a property of the noise, and this many rows estimate it well enough.
_MAX_SAMPLED_ROWS = 1024


def sample_rows(values: Cells) -> Matrix:
    """Every n-th row of [rows, steps], at most ``_MAX_SAMPLED_ROWS`` of them."""
    sampled: Matrix = values[:: 1 + len(values) // _MAX_SAMPLED_ROWS, :]
    return sampled


def deviation_of(change: Matrix) -> float:
    """Standard deviation of values, by how much they change from step to step.

    Such changes leave episodes out; the median leaves their edges out. A difference of two
    independent values has sqrt(2) times the deviation of one.
    """
    median = nan_stats.median_number(np.abs(change)) or 0.0
    return median * _SIGMAS_PER_MEDIAN / math.sqrt(2)


def noise_limit(values: Matrix) -> float:
    """What a value [..., steps] has beyond the usual that noise from step to step never reaches."""
    return _SIGMAS * deviation_of(np.diff(values))


# An estimated correlation of n values has a standard error of at most 1 / sqrt(n); two are added.
_ERRORS_ADDED = 2.0
_MAX_CORRELATION = 0.99
# The tail is fitted to the largest shocks: one in 50, and ten at least.
_TAIL_DIVISOR, _MIN_TAIL = 50, 10
_LEAST = 1e-12
# Fewer steps say nothing about how one follows the other.
_MIN_KNOWN = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The noise of a recording, in the unit of its values.

    Attributes:
        deviation: standard deviation of a value, without the tail.
        correlation: of a step with the next one, with its error added.
        tail_from: size of shock from which on the tail is fitted.
        tail_share: share of the shocks beyond ``tail_from``; ``tail_count`` is their number.
        tail_logs: sum of the logarithms of the tail's shocks, in units of ``tail_from``.
    """

    deviation: float
    correlation: float
    tail_from: float
    tail_share: float
    tail_logs: float
    tail_count: int

    def chance_of_shock(self, height: float, num_steps: int) -> float:
        """Probability that a shock at a given step keeps ``num_steps`` values over ``height``.

        A shock fades by the correlation, so the first value must be so much higher. The tail is
        Pareto's; its index is unknown, so this is the predictive probability of the next shock
        given those of the tail (exact for Pareto tails, too large for lighter ones).
        """
        if not self.correlation or self.tail_logs <= 0:
            return 0.0
        fading = -(num_steps - 1) * math.log(self.correlation)
        beyond = (math.log(height / self.tail_from) + fading) / self.tail_logs
        if beyond <= 0:
            return 1.0
        return self.tail_share * math.exp(-self.tail_count * math.log1p(beyond))

    def chance_of_mean(self, height: float, num_steps: int) -> float:
        """Bound of the probability that the mean of ``num_steps`` values reaches ``height``.

        Null hypothesis: normal noise with this deviation and correlation. Chernoff's bound.
        """
        lags = np.arange(1, num_steps)
        sums = float(((1 - lags / num_steps) * self.correlation**lags).sum())
        variance = self.deviation**2 * (1 + 2 * sums) / num_steps
        return math.exp(-(height**2) / (2 * variance)) if variance > 0 else 0.0


def measure_noise(values: Matrix) -> Noise | None:
    """The noise of values beyond the usual [ranks, steps]; None when too few follow each other.

    NaN is unknown, and where episodes were taken out.
    """
    centred = values - nan_stats.median(values, axis=1)[:, None]
    num_known = int(np.count_nonzero(~np.isnan(centred)))
    if num_known < _MIN_KNOWN:
        return None
    most = _BULK_SIGMAS * _SIGMAS_PER_MEDIAN * (nan_stats.median_number(np.abs(centred)) or 0.0)
    bulk = np.clip(centred, -most, most)
    products = bulk[:, 1:] * bulk[:, :-1]
    squares = float((bulk[:, :-1][~np.isnan(products)] ** 2).sum())
    correlation = max(0.0, float(np.nansum(products)) / squares) if squares > 0 else 0.0
    correlation = min(_MAX_CORRELATION, correlation + _ERRORS_ADDED / math.sqrt(num_known))
    shocks = np.abs(centred[:, 1:] - correlation * centred[:, :-1])
    shocks = np.sort(shocks[~np.isnan(shocks)])
    count = max(_MIN_TAIL, len(shocks) // _TAIL_DIVISOR)
    if len(shocks) <= 2 * count:
        return None
    tail_from = max(float(shocks[-count - 1]), _LEAST)
    variance = float((np.minimum(shocks, tail_from) ** 2).mean()) / (1 - correlation**2)
    return Noise(
        deviation=math.sqrt(variance),
        correlation=correlation,
        tail_from=tail_from,
        tail_share=count / num_known,
        tail_logs=float(np.log(np.maximum(shocks[-count:], tail_from) / tail_from).sum()),
        tail_count=count,
    )


# Standard deviation of the share of turning points of n independent values, times sqrt(n): their
# number has the variance (16 n - 29) / 90 (Kendall and Stuart).
_SIGMA_OF_TURNS = math.sqrt(16 / 90)


def independence(margin: Cells) -> float:
    """How many independent steps a step of [units, steps] is worth: less than 1 if noise persists.

    Null hypothesis: the noise is independent from step to step; then a series turns in two steps
    of three. Assumed otherwise: first-order autoregression with correlation r, whose steps are
    worth (1 - r) / (1 + r) each; a random walk (r = 1) turns in every other step. An episode adds
    at most two turns, so unlike an autocorrelation the estimate is not moved by what is searched
    for.
    """
    change = np.diff(sample_rows(margin), axis=1)
    product = change[:, 1:] * change[:, :-1]
    num_known, num_turns = np.count_nonzero(product), np.count_nonzero(product < 0)
    num_known -= np.count_nonzero(np.isnan(product))
    if not num_known:
        return 1.0
    # One standard deviation is added, so that a short recording with independent noise is not
    # taken for a persistent one by chance.
    turn_share = num_turns / num_known + _SIGMA_OF_TURNS / math.sqrt(margin.shape[1])
    # For normal noise a series turns with probability arccos((r - 1) / 2) / pi.
    correlation = min(0.99, max(0.0, 1 + 2 * math.cos(math.pi * turn_share)))
    return (1 - correlation) / (1 + correlation)
