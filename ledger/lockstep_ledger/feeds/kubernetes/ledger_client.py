"""The ledger by its API: what it holds open, what it has of a job, and the way to deliver."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from lockstep_ledger.feeds.kubernetes.fields import count_of, list_of, part_of, text_of
from lockstep_ledger.feeds.kubernetes.pods import PodRun
from lockstep_records.file_access.token_files import read_token

_TIMEOUT_SECONDS = 30.0
_PAGE = 500


class AwayError(Exception):
    """The ledger does not answer, or refuses to; the text says which."""


@dataclass(slots=True)
class Remembered:
    """What the ledger has of a job.

    Attributes:
        project: of the job; empty where nobody states one.
        uid: of the object that it is, by the feed's newest word; empty where that is none.
        is_ours: whether this feed speaks of it.
        sent: identities of its submissions and starts, as the feed that made them has them.
        runs: of its pods, as they were delivered, by name.
        described: time of the newest description.
        updated: time of its newest event.
    """

    project: str = ""
    uid: str = ""
    kind: str = ""
    is_open: bool = True
    is_ours: bool = False
    sent: set[str] = field(default_factory=set)
    runs: dict[str, PodRun] = field(default_factory=dict)
    described: float = 0.0
    updated: float = 0.0


class LedgerClient:
    """Requests to a ledger.

    Args:
        writer, reader: files of tokens, read at each request; None where the ledger asks for none.
    """

    def __init__(self, url: str, cluster: str, writer: Path | None, reader: Path | None) -> None:
        self.cluster = cluster
        self._url, self._writer, self._reader = url.rstrip("/"), writer, reader
        self._client = httpx.Client(timeout=_TIMEOUT_SECONDS)

    def post(
        self, events: list[bytes], sent: float, report: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        """Deliver events, each as JSON; status and answer.

        Raises:
            AwayError: it does not answer.
        """
        body = {
            "version": 1, "cluster": self.cluster, "node": "", "sent": sent, "feed": report,
            "events": list(map(msgspec.Raw, events)),
        }  # fmt: skip
        answer = self._request(
            "POST", "/api/events", self._writer, content=msgspec.json.encode(body)
        )
        try:
            return answer.status_code, dict(answer.json())
        except (ValueError, TypeError):
            return answer.status_code, {"error": answer.text[:200]}

    def list_open(self) -> Iterator[str]:
        """The ids of the jobs of the cluster that have no end.

        Raises:
            AwayError: it does not answer.
        """
        for status in ("running", "pending"):
            after: int | None = None
            while True:
                query = {"cluster": self.cluster, "status": status, "limit": str(_PAGE)}
                page = (
                    self._read("/api/jobs", query | ({"after": str(after)} if after else {})) or {}
                )
                yield from (text_of(job.get("job_id")) for job in list_of(page.get("jobs")))
                after = page.get("next")
                if after is None:
                    break

    def find(self, job_id: str) -> Remembered | None:
        """What it has of a job; None where it has none.

        Raises:
            AwayError: it does not answer.
        """
        document = self._read(f"/api/jobs/{quote(job_id, safe='')}", {"cluster": self.cluster})
        return None if document is None else _read_job(document)

    def _read(self, path: str, query: dict[str, str]) -> dict[str, Any] | None:
        answer = self._request("GET", path, self._reader, params=query)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        if answer.status_code != HTTPStatus.OK:
            raise AwayError(f"{self._url} answers {answer.status_code}: {answer.text[:200]}")
        return dict(answer.json())

    def _request(self, method: str, path: str, token: Path | None, **more: Any) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        try:
            if token is not None:
                headers["Authorization"] = f"Bearer {read_token(token)}"
            return self._client.request(method, self._url + path, headers=headers, **more)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise AwayError(f"{self._url} does not answer: {error}") from error


def _read_job(document: dict[str, Any]) -> Remembered:
    """The feed's own words in a job's timeline."""
    found = Remembered(project=text_of(document.get("project")))
    ends: set[str] = set()
    for event in list_of(document.get("timeline")):
        fields, time = part_of(event, "fields"), float(event.get("time") or 0.0)
        if event.get("node") or fields.get("source") != "kubernetes":
            continue
        found.is_ours, found.updated = True, max(found.updated, time)
        kind, uid = event.get("kind"), text_of(fields.get("object_uid"))
        if kind == "job_submitted":
            if uid != found.uid:
                found.uid, found.kind = uid, text_of(fields.get("object_kind"))
                found.sent, found.runs = set(), {}
            found.sent.add(f"submit {text_of(fields.get('submitted_as'))}")
            found.described = max(found.described, time)
        elif kind == "job_started" and uid == found.uid:
            found.sent.add(f"start {text_of(fields.get('opening'))}")
        elif kind == "job_finished" and not fields.get("goes_on"):
            ends.add(uid)
        elif kind in {"resources_allocated", "resources_released"} and uid == found.uid:
            _read_run(found.runs, str(kind), time, fields)
    found.is_open = found.uid not in ends
    return found


def _read_run(runs: dict[str, PodRun], kind: str, time: float, fields: Any) -> None:
    part = text_of(fields.get("part"))
    if kind == "resources_allocated":
        created = fields.get("pod_created")
        runs[part] = PodRun(
            part, part.partition("/")[0], time,
            float(created) if isinstance(created, int | float) else time,
            count_of(fields.get("num_gpus")), text_of(fields.get("node")),
            restart=count_of(fields.get("restart")),
        )  # fmt: skip
    elif part in runs:
        run, fate = runs[part], text_of(fields.get("fate"))
        run.end = time
        run.fate = fate if fate in {"succeeded", "failed", "disrupted", "taken"} else "unseen"  # type: ignore[assignment]  # checked
