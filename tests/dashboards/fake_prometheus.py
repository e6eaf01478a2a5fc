"""A Prometheus that answers every query with the same series, for tests without a server."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx

from lockstep_prometheus.client import Prometheus

Labels = Mapping[str, str]


@dataclass
class FakePrometheus:
    """Every range query yields ``series``: its labels and a value, which rises by one a point."""

    series: Sequence[tuple[Labels, float]] = (({"rank": "1", "job_id": "demo", "le": "1"}, 1.0),)
    label_values: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {"job_id": ["demo"], "cluster": ["c"]}
    )
    events: Sequence[Labels] = ()
    queries: list[str] = field(default_factory=list)

    def source(self) -> Prometheus:
        return Prometheus(
            "http://user:secret@prometheus:9090", transport=httpx.MockTransport(self.answer)
        )

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        form = {key: values[0] for key, values in parse_qs(request.read().decode()).items()}
        if path.endswith("/values"):
            return success(list(self.label_values.get(path.split("/")[-2], ())))
        if path.endswith("/targets"):
            return success({"activeTargets": [{"scrapeInterval": "5s"}, {"scrapeInterval": "1s"}]})
        self.queries.append(form["query"])
        is_event = "ALERTS" in form["query"] or "unless" in form["query"]
        series = [(labels, 1.0) for labels in self.events] if is_event else self.series
        if path.endswith("/query"):
            return vector(series, float(form["time"]))
        begin, end, step = (float(form[name]) for name in ("start", "end", "step"))
        times = [begin + n * step for n in range(int((end - begin) / step) + 1)]
        if is_event:
            times = times[len(times) // 2 :]
        return success(
            {
                "resultType": "matrix",
                "result": [
                    {
                        "metric": dict(labels),
                        "values": [[at, str(first + n)] for n, at in enumerate(times)],
                    }
                    for labels, first in series
                ],
            }
        )


def success(data: Any) -> httpx.Response:
    return httpx.Response(200, text=json.dumps({"status": "success", "data": data}))


def vector(series: Sequence[tuple[Labels, float]], at: float) -> httpx.Response:
    result = [{"metric": dict(labels), "value": [at, str(value)]} for labels, value in series]
    return success({"resultType": "vector", "result": result})
