"""Looks at a Prometheus: the newest values and a minute of rates, a handful of queries a look."""

import time
from collections.abc import Callable

import numpy as np

from lockstep_catalogue import training
from lockstep_catalogue.labels import JOB_ID, NODE, OWN_WORK_PHASES, PHASE, RANK
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import Matcher, by, eq, one_of, rate, select
from lockstep_reports import nan_stats
from lockstep_reports.readers.prometheus_api import Prometheus, Series
from lockstep_reports.top.snapshot import Look, RankRow, lags, state_of, worst_first

_RATE_WINDOW = "1m"
_SPARKS, _SPARK_SECONDS = 16, 15.0

_Key = tuple[str, int]


class PrometheusSource:
    """The ranks that a Prometheus knows of.

    Args:
        url: where it answers.
        job_id: which job; None for all.
        node: which node's ranks; None for all.
    """

    def __init__(
        self,
        url: str,
        job_id: str | None = None,
        node: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._server, self._clock, self._node = Prometheus(url), clock, node
        self._of: tuple[Matcher, ...] = () if job_id is None else (eq(JOB_ID, job_id),)

    def look(self) -> Look:
        """The ranks now.

        Raises:
            ValueError: nobody answers, or it knows of no rank.
        """
        now = self._clock()
        nodes = {
            _key(series): series.labels.get(NODE.name, "")
            for series in self._server.instant(select(training.RANK_INFO, *self._of), now)
        }
        mine = [key for key in sorted(nodes) if self._node in {None, nodes[key]}]
        if not mine:
            raise ValueError(f"{self._server.shown} knows of no such rank now")
        rows = self._rows(now, mine, nodes)
        return Look(title=self._server.shown, at=now, rows=worst_first(rows))

    def close(self) -> None:
        """Lets go of the connection."""
        self._server.close()

    def _rows(self, now: float, mine: list[_Key], nodes: dict[_Key, str]) -> list[RankRow]:
        steps = by("sum", rate(training.STEPS, _RATE_WINDOW, *self._of), JOB_ID, RANK)
        pace = self._by_rank(steps, now)
        own = self._per_step(now, pace, *OWN_WORK_PHASES)
        wait = self._per_step(now, pace, "sync")
        progress = self._by_rank(select(training.LAST_PROGRESS, *self._of), now)
        waiting = self._by_rank(select(training.RANK_WAITING, *self._of), now)
        step, loss = (self._by_node(metric, now) for metric in (training.STEP, training.LOSS))
        tokens = self._tokens(now, nodes)
        lag = _lags(own)
        sparks = self._sparks(steps, now)
        return [
            RankRow(
                job_id=key[0],
                rank=key[1],
                node=nodes[key],
                state=state_of("training", quiet, 1 / pace[key] if pace.get(key) else None),
                phase="sync" if waiting.get(key) else None,
                step=None if (at := step.get((key[0], nodes[key]))) is None else int(at),
                lag_seconds=lag.get(key),
                wait_seconds=wait.get(key),
                step_seconds=1 / pace[key] if pace.get(key) else None,
                tokens_per_second=tokens.get((key[0], nodes[key])),
                loss=loss.get((key[0], nodes[key])),
                quiet_seconds=quiet,
                step_times=sparks.get(key, ()),
            )
            for key in mine
            for quiet in (max(0.0, now - progress.get(key, now)),)
        ]

    def _by_rank(self, query: str, now: float) -> dict[_Key, float]:
        return {_key(one): one.points[-1][1] for one in self._server.instant(query, now)}

    def _by_node(self, metric: Metric, now: float) -> dict[tuple[str, str], float]:
        found = self._server.instant(select(metric, *self._of), now)
        return {_place(one): one.points[-1][1] for one in found}

    def _tokens(self, now: float, nodes: dict[_Key, str]) -> dict[tuple[str, str], float]:
        """Tokens a second of each rank: its node's, shared evenly."""
        query = by("sum", rate(training.TOKENS, _RATE_WINDOW, *self._of), JOB_ID, NODE)
        counts: dict[tuple[str, str], int] = {}
        for (job, _), node in nodes.items():
            counts[job, node] = counts.get((job, node), 0) + 1
        return {
            _place(one): one.points[-1][1] / counts.get(_place(one), 1)
            for one in self._server.instant(query, now)
        }

    def _per_step(self, now: float, pace: dict[_Key, float], *phases: str) -> dict[_Key, float]:
        matchers = (*self._of, one_of(PHASE, *phases))
        query = by("sum", rate(training.PHASE_SECONDS, _RATE_WINDOW, *matchers), JOB_ID, RANK)
        spent = self._by_rank(query, now)
        return {key: spent[key] / each for key, each in pace.items() if each > 0 and key in spent}

    def _sparks(self, steps: str, now: float) -> dict[_Key, tuple[float, ...]]:
        begin = now - _SPARKS * _SPARK_SECONDS
        return {
            _key(one): tuple(1 / pace for _, pace in one.points if pace > 0)
            for one in self._server.over(steps, begin, now, _SPARK_SECONDS)
        }


def _key(series: Series) -> _Key:
    rank = series.labels.get(RANK.name, "")
    return series.labels.get(JOB_ID.name, ""), int(rank) if rank.isdecimal() else 0


def _place(series: Series) -> tuple[str, str]:
    return series.labels.get(JOB_ID.name, ""), series.labels.get(NODE.name, "")


def _lags(own: dict[_Key, float]) -> dict[_Key, float | None]:
    """Own work beyond the median of each rank's job."""
    told: dict[_Key, float | None] = {}
    for job in {key[0] for key in own}:
        keys = [key for key in own if key[0] == job]
        values = lags(np.array([[own[key]] for key in keys]))
        told |= {key: nan_stats.number(value) for key, value in zip(keys, values, strict=True)}
    return told
