"""Jobs of up to seven events, of which every order is tried; they lie in ``small_jobs.yaml``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .histories import BASE_SECONDS, CLUSTER
from .truth import Message


def _read(number: int, row: list[Any]) -> Message:
    sender, seconds, kind, attempt, *rest = row
    fields: dict[str, Any] = dict(*rest)
    time, (node, _, launcher) = BASE_SECONDS + seconds, sender.partition("/")
    event: Mapping[str, Any] = {
        "version": 1,
        "id": f"small-{number}",
        "kind": kind,
        "job_id": fields.pop("job_id", "small"),
        "attempt": attempt,
        "time": time,
        "node": node,
        "cluster": CLUSTER,
        "fields": fields,
        **({"launcher": launcher} if launcher else {}),
    }
    return Message(sender=node or "scheduler", clock_offset=0.0, true_time=time, event=event)


SMALL_JOBS, LARGER_JOBS = (
    {name: tuple(map(_read, range(len(rows)), rows)) for name, rows in jobs.items()}
    for jobs in yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    ).values()
)
