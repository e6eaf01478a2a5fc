"""Snapshots from a Prometheus: newest values and rates over a minute, a handful of queries each."""

import time
from collections import Counter

import numpy as np

from lockstep_catalogue import training
from lockstep_catalogue.labels import CLOCK, JOB_ID, NODE, OWN_WORK_PHASES, PHASE, RANK
from lockstep_catalogue.promql import Matcher, by, eq, one_of, rate, select
from lockstep_prometheus.client import Prometheus, Series
from lockstep_reports import nan_stats
from lockstep_reports.top import table

# Four scrapes of 15 s; `rate` needs two samples and a scrape may fail.
_RATE_WINDOW = "1m"
_NUM_SPARK_STEPS, _SPARK_SECONDS = 16, 15.0

_Key = tuple[str, int]


class PrometheusSource:
    """The ranks that a Prometheus knows of: of one job or all, on one node or all."""

    def __init__(self, url: str, job_id: str | None = None, node: str | None = None) -> None:
        self._server, self._node = Prometheus(url), node
        self._clocks: dict[_Key, str] = {}
        self._matchers: tuple[Matcher, ...] = () if job_id is None else (eq(JOB_ID, job_id),)

    def poll(self) -> table.Snapshot:
        """The ranks now; ValueError where the server does not answer, or has no such rank."""
        now = time.time()
        ranks = self._server.instant(select(training.RANK_INFO, *self._matchers), now)
        nodes = {_key(series): series.labels.get(NODE.name, "") for series in ranks}
        self._clocks = {_key(series): series.labels.get(CLOCK.name, "host") for series in ranks}
        keys = [key for key in sorted(nodes) if self._node in {None, nodes[key]}]
        if not keys:
            raise ValueError(f"{self._server.address} knows of no such rank now")
        rows = self._rows(now, keys, nodes)
        return table.Snapshot(
            title=self._server.address,
            wall_seconds=now,
            rows=table.worst_first(rows),
            notes=table.why_unobserved(rows),
        )

    def close(self) -> None:
        """Closes the connection."""
        self._server.close()

    def _rows(self, now: float, keys: list[_Key], nodes: dict[_Key, str]) -> list[table.RankRow]:
        steps = by("sum", rate(training.STEPS, _RATE_WINDOW, *self._matchers), JOB_ID, RANK)
        # Durations are the inverse of rates: series hold sums over many steps.
        step_rate = self._ask_by_rank(steps, now)
        own_work = self._per_step(now, step_rate, *OWN_WORK_PHASES)
        wait, other = (self._per_step(now, step_rate, phase) for phase in ("sync", "other"))
        progress = self._ask_by_rank(select(training.LAST_PROGRESS, *self._matchers), now)
        waiting = self._ask_by_rank(select(training.RANK_WAITING, *self._matchers), now)
        # The agent exports both once per node, not per rank.
        metrics = (training.STEP, training.LOSS)
        step, loss = (self._ask_by_node(select(m, *self._matchers), now) for m in metrics)
        tokens = self._tokens(now, nodes)
        lag = _lags(own_work, self._clocks)
        sparks = self._sparks(steps, now)
        step_seconds = {key: 1 / value for key, value in step_rate.items() if value}
        rows = []
        for key in keys:
            job_and_node = key[0], nodes[key]
            number = step.get(job_and_node)
            quiet = max(0.0, now - progress.get(key, now))
            rows.append(
                table.RankRow(
                    job_id=key[0],
                    rank=key[1],
                    node=nodes[key],
                    state=table.state_of("training", quiet, step_seconds.get(key)),
                    phase="sync" if waiting.get(key) else None,
                    step=None if number is None else int(number),
                    lag_seconds=lag.get(key),
                    wait_seconds=wait.get(key),
                    step_seconds=step_seconds.get(key),
                    tokens_per_second=tokens.get(job_and_node),
                    loss=loss.get(job_and_node),
                    quiet_seconds=quiet,
                    other_seconds=other.get(key),
                    step_times=sparks.get(key, ()),
                    clock=self._clocks[key],
                )
            )
        return rows

    def _ask_by_rank(self, query: str, now: float) -> dict[_Key, float]:
        return {_key(series): series.points[-1][1] for series in self._server.instant(query, now)}

    def _ask_by_node(self, query: str, now: float) -> dict[tuple[str, str], float]:
        return {
            (series.labels.get(JOB_ID.name, ""), series.labels.get(NODE.name, "")): value
            for series in self._server.instant(query, now)
            for _, value in series.points[-1:]
        }

    def _tokens(self, now: float, nodes: dict[_Key, str]) -> dict[tuple[str, str], float]:
        """Tokens per second of each rank by job and node: the node's rate, shared evenly."""
        query = by("sum", rate(training.TOKENS, _RATE_WINDOW, *self._matchers), JOB_ID, NODE)
        counts = Counter((job, node) for (job, _), node in nodes.items())
        rates = self._ask_by_node(query, now)
        return {key: value / max(1, counts[key]) for key, value in rates.items()}

    def _per_step(
        self, now: float, step_rate: dict[_Key, float], *phases: str
    ) -> dict[_Key, float]:
        matchers = (*self._matchers, one_of(PHASE, *phases))
        query = by("sum", rate(training.PHASE_SECONDS, _RATE_WINDOW, *matchers), JOB_ID, RANK)
        seconds = self._ask_by_rank(query, now)
        return {
            key: seconds[key] / rate_of_key
            for key, rate_of_key in step_rate.items()
            if rate_of_key > 0 and key in seconds
        }

    def _sparks(self, steps: str, now: float) -> dict[_Key, tuple[float, ...]]:
        begin = now - _NUM_SPARK_STEPS * _SPARK_SECONDS
        return {
            _key(series): tuple(1 / step_rate for _, step_rate in series.points if step_rate > 0)
            for series in self._server.over(steps, begin, now, _SPARK_SECONDS)
        }


def _key(series: Series) -> _Key:
    # Labels are free text of the server; what is not a number counts as rank 0.
    rank = series.labels.get(RANK.name, "")
    return series.labels.get(JOB_ID.name, ""), int(rank) if rank.isdecimal() else 0


def _lags(own_work: dict[_Key, float], clocks: dict[_Key, str]) -> dict[_Key, float | None]:
    """Seconds of own work per step beyond the median of the job's ranks with the same clock."""
    lag_by_key: dict[_Key, float | None] = {}
    of_one_clock: dict[tuple[str, str | None], list[_Key]] = {}
    for key in own_work:
        of_one_clock.setdefault((key[0], clocks.get(key)), []).append(key)
    for keys in of_one_clock.values():
        values = table.lags(np.array([[own_work[key]] for key in keys]))
        lag_by_key |= {
            key: nan_stats.number(value) for key, value in zip(keys, values, strict=True)
        }
    return lag_by_key
