"""The dry run against somebody's own installation: marked alerts and events, by the public ways.

Each step is one sentence of what was seen. What was made is ended and taken back, whatever happens;
the ledger keeps its record, by its class a synthetic one, which no objective counts.
"""

import functools
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from lockstep_catalogue.ledger import SLO_EVENTS
from lockstep_catalogue.vocabulary import SYNTHETIC_CLASS
from lockstep_records.events.event import Event
from lockstep_records.events.kinds import VERSION
from lockstep_records.file_access.token_files import read_token

_MARK, _CLUSTER = "synthetic", "gameday"
_USES: Mapping[str, Mapping[str, str]] = {
    "page": {"severity": "critical", "incident": "gameday"},
    "ticket": {"severity": "warning"},
    "owners": {"severity": "warning", "route": "owners", "project": "gameday"},
}
_SUMMARY = "DRY RUN of lockstep gameday: nothing is wrong, and nothing is to be done"
_ANSWER_SECONDS, _SEEN_SECONDS, _NOTIFIED_SECONDS = 10.0, 30.0, 90.0
_REQUESTS = re.compile(
    r'^alertmanager_notification_requests(_failed)?_total\{integration="(\w+)".*?\} (\S+)$',
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """Where it answers; what has no address is not tried.

    Attributes:
        notify: whether the receivers are tried too: somebody is notified, and of the end again.
        folder: of pages on this node, where a canary runs; None runs none.
    """

    alertmanager: str
    prometheus: str = ""
    ledger: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    notify: bool = False
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What was seen; ``holds`` is None of what was not tried."""

    name: str
    holds: bool | None
    seen: str


def against_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds the options of the dry run, which with ``--against`` takes the command's place."""

    @functools.wraps(command)
    def run(**options: Any) -> int:
        installation = Installation(**{each: options.pop(each) for each in _OPTIONS})
        return prove(installation) if installation.alertmanager else command(**options)

    return functools.reduce(lambda inner, option: option(inner), reversed(_OPTIONS.values()), run)


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS: dict[str, Callable[..., Any]] = {
    "alertmanager": click.option(
        "--against",
        "alertmanager",
        default="",
        help="Alertmanager of your own installation: a dry run with marked alerts instead.",
    ),
    "prometheus": click.option("--prometheus", default="", help="Its Prometheus."),
    "ledger": click.option("--ledger", default="", help="Its ledger."),
    "token_file": click.option(
        "--token-file", type=_FILE, help="File of a token that writes to and reads that ledger."
    ),
    "ca_file": click.option("--ca", "ca_file", type=_FILE, help="Certificates for https."),
    "notify": click.option("--notify", is_flag=True, help="Try its receivers: they are notified."),
    "folder": click.option(
        "--dir", "folder", type=click.Path(path_type=Path), help="Run a canary in these pages."
    ),
}


def prove(installation: Installation) -> int:
    """Prints the steps; the exit status is 1 where one fails."""
    words = {True: "ok", False: "FAIL", None: "not tried"}
    held = []
    with closing(DryRun(installation)) as run:
        for step in run.steps():
            held.append(step.holds)
            click.echo(f"{words[step.holds]:<10}{step.name:<24}{step.seen}")
    return int(False in held)


class DryRun:
    """One dry run; its id is in the label ``synthetic`` of all that it makes."""

    def __init__(self, installation: Installation) -> None:
        import httpx  # noqa: PLC0415  # half a second that --help need not wait for

        self._at, self.id = installation, f"gameday-{uuid.uuid4().hex[:12]}"
        verify = str(installation.ca_file) if installation.ca_file else True
        self._http = httpx.Client(timeout=_ANSWER_SECONDS, verify=verify)
        self._errors = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, LookupError)
        self._receivers = dict[str, list[str]]()

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    def steps(self) -> Iterator[Step]:
        """Each step when it is done; all is taken back at the end."""
        silence = ""
        yield self._try("alertmanager", self._status)
        yield self._try("watchdog", self._watchdog)
        try:
            if not self._at.notify:
                silence = self._silence()
                yield Step("silence", True, f"nobody is notified of {_MARK}={self.id}")
            before = self._requests()
            self._alerts(timedelta(minutes=10))
            for use in _USES:
                yield self._try(f"route of {use}", functools.partial(self._route, use))
            yield self._try("receivers", lambda: self._notified(before))
        except self._errors as error:
            yield Step("synthetic alerts", False, _text_of(error))
        finally:
            cleaned = self._try("clean up", lambda: self._clean_up(silence))
        yield cleaned
        yield self._try("prometheus", self._rules, self._at.prometheus)
        yield self._try("ledger", self._record, self._at.ledger)
        yield self._try("canary", self._canary, self._at.folder)

    def _try(self, name: str, see: Callable[[], Step | str], given: object = True) -> Step:
        if not given:
            return Step(name, None, "its address or folder is not given")
        try:
            seen = see()
        except self._errors as error:
            return Step(name, False, _text_of(error))
        return Step(name, True, seen) if isinstance(seen, str) else seen

    def _get(self, base: str, path: str, **query: str | list[str]) -> Any:
        answer = self._http.get(f"{base.rstrip('/')}{path}", params=query, headers=self._head(base))
        return answer.raise_for_status().json()

    def _head(self, base: str) -> dict[str, str]:
        token = self._at.token_file if base == self._at.ledger else None
        return {"Authorization": f"Bearer {read_token(token)}"} if token else {}

    def _send(self, base: str, path: str, body: object) -> Any:
        url = f"{base.rstrip('/')}{path}"
        return self._http.post(url, json=body, headers=self._head(base)).raise_for_status()

    def _status(self) -> str:
        import yaml  # noqa: PLC0415  # as httpx

        status = self._get(self._at.alertmanager, "/api/v2/status")
        config = yaml.safe_load(status["config"]["original"])
        self._receivers = {
            each["name"]: [key.removesuffix("_configs") for key in each if key != "name"]
            for each in config["receivers"]
        }
        version = status["versionInfo"]["version"]
        return f"version {version}, receivers {', '.join(sorted(self._receivers))}"

    def _watchdog(self) -> Step:
        query = {"filter": 'alertname="TrainWatchdog"'}
        path = "/api/v2/alerts"
        # Of a Prometheus that has just started it comes a minute later.
        found = _until(_NOTIFIED_SECONDS, lambda: self._get(self._at.alertmanager, path, **query))
        names = sorted({each["name"] for alert in found for each in alert["receivers"]})
        seen = f"TrainWatchdog is there, for {', '.join(names)}"
        return Step("watchdog", bool(found), seen if found else "TrainWatchdog is not there")

    def _silence(self) -> str:
        now = datetime.now(UTC)
        matcher = {"name": _MARK, "value": self.id, "isRegex": False, "isEqual": True}
        body = {
            "matchers": [matcher],
            "startsAt": now.isoformat(),
            "endsAt": (now + timedelta(minutes=15)).isoformat(),
            "createdBy": "lockstep gameday",
            "comment": _SUMMARY,
        }
        answer = self._send(self._at.alertmanager, "/api/v2/silences", body).json()
        return str(answer["silenceID"])

    def _alerts(self, lasts: timedelta) -> None:
        now = datetime.now(UTC)
        body = [
            {
                "labels": {
                    "alertname": "LockstepGameday",
                    "cluster": _CLUSTER,
                    "job_id": self.id,
                    _MARK: self.id,
                    "use": use,
                    **labels,
                },
                "annotations": {"summary": _SUMMARY, "description": f"A marked {use}."},
                "startsAt": (now - timedelta(seconds=1)).isoformat(),
                "endsAt": (now + lasts).isoformat(),
            }
            for use, labels in _USES.items()
        ]
        self._send(self._at.alertmanager, "/api/v2/alerts", body)

    def _active(self, use: str = "") -> list[Any]:
        filters = [f'{_MARK}="{self.id}"', *([f'use="{use}"'] if use else [])]
        found: list[Any] = self._get(self._at.alertmanager, "/api/v2/alerts", filter=filters)
        return found

    def _route(self, use: str) -> Step:
        found = _until(_SEEN_SECONDS, lambda: self._active(use))
        names = sorted({each["name"] for alert in found or () for each in alert["receivers"]})
        ways = {name: self._receivers.get(name, []) for name in names}
        empty = [name for name, kinds in ways.items() if not kinds]
        seen = "; ".join(
            f"{name} by {', '.join(kinds) or 'nothing'}" for name, kinds in ways.items()
        )
        return Step(f"route of {use}", bool(names) and not empty, seen or "no such alert came")

    def _requests(self) -> dict[tuple[str, str], float]:
        answer = self._http.get(f"{self._at.alertmanager.rstrip('/')}/metrics").raise_for_status()
        return {(kind, failed): float(n) for failed, kind, n in _REQUESTS.findall(answer.text)}

    def _notified(self, before: Mapping[tuple[str, str], float]) -> Step:
        if not self._at.notify:
            return Step("receivers", None, "--notify tries them, and notifies whoever is behind")
        names = {each["name"] for alert in self._active() for each in alert["receivers"]}
        kinds = {kind for name in names for kind in self._receivers.get(name, ())}

        def grown(failed: str) -> dict[str, float]:
            now = self._requests()
            grows = {
                kind: now.get((kind, failed), 0) - before.get((kind, failed), 0) for kind in kinds
            }
            return {kind: number for kind, number in grows.items() if number > 0}

        enough = len(names)
        _until(_NOTIFIED_SECONDS, lambda: sum(grown("").values()) >= enough or grown("_failed"))
        sent, failed = grown(""), grown("_failed")
        seen = f"requests of {', '.join(sorted(names))}: " + (
            ", ".join(f"{kind} {n:g}" for kind, n in sent.items()) or "none"
        )
        seen += f"; failed: {', '.join(failed)}" if failed else ""
        return Step("receivers", sum(sent.values()) >= enough and not failed, seen)

    def _clean_up(self, silence: str) -> Step:
        self._alerts(timedelta())
        gone = _until(_SEEN_SECONDS, lambda: not self._active())
        if silence:
            url = f"{self._at.alertmanager.rstrip('/')}/api/v2/silence/{silence}"
            self._http.delete(url).raise_for_status()
        seen = f"alerts have ended{', the silence is deleted' if silence else ''}"
        return Step("clean up", bool(gone), seen if gone else "alerts are still there; they end")

    def _rules(self) -> Step:
        groups = self._get(self._at.prometheus, "/api/v1/rules")["data"]["groups"]
        ours = [group for group in groups if "lockstep-" in group["name"]]
        rules = [rule for group in ours for rule in group["rules"]]
        sick = sorted({rule["name"] for rule in rules if rule["health"] == "err"})
        managers = self._get(self._at.prometheus, "/api/v1/alertmanagers")["data"]
        number = len(managers["activeAlertmanagers"])
        query = 'count(up{job=~".*lockstep-agent"} == 1)'
        result = self._get(self._at.prometheus, "/api/v1/query", query=query)["data"]["result"]
        agents = result[0]["value"][1] if result else "0"
        seen = f"{len(rules)} rules, {number} Alertmanagers, {agents} agents answer"
        seen += f"; failing: {', '.join(sick)}" if sick else ""
        return Step("prometheus", bool(rules) and not sick and number > 0 and agents != "0", seen)

    def _record(self) -> Step:
        answer = self._send(self._at.ledger, "/api/events", self._events()).json()
        if answer.get("rejected"):
            return Step("ledger", False, f"refused: {answer['rejected'][0]['reason']}")

        def record() -> Any:
            with suppress(*self._errors):
                found = self._get(self._at.ledger, f"/api/jobs/{self.id}", cluster=_CLUSTER)
                return found if found["outcome"] else None

        found = _until(_SEEN_SECONDS, record)
        if not found:
            return Step("ledger", False, "its events were taken, and no record came of them")
        url, head = f"{self._at.ledger.rstrip('/')}/metrics", self._head(self._at.ledger)
        text = self._http.get(url, headers=head).raise_for_status().text
        pattern = rf'^{SLO_EVENTS.name}\{{.*job_class="{SYNTHETIC_CLASS}".*\}} (\S+)$'
        counted = sum(map(float, re.findall(pattern, text, re.MULTILINE)))
        seen = f"outcome {found['outcome']}, class {found['job_class']}, in {counted:g} objectives"
        return Step("ledger", found["job_class"] == SYNTHETIC_CLASS and not counted, seen)

    def _events(self) -> dict[str, Any]:
        """A delivery of the events of a job that has failed by the cluster."""
        now = time.time()
        end: dict[str, Any] = {"outcome": "failed", "failure_class": "infra", "reason": _SUMMARY}
        kinds: dict[str, dict[str, Any]] = {
            "job_started": {"job_class": SYNTHETIC_CLASS, "world_size": 1, "nnodes": 1},
            "attempt_started": {},
            "attempt_ended": end,
            "job_finished": end,
        }
        origin: dict[str, Any] = {"job_id": self.id, "attempt": 0, "node": _CLUSTER}
        events = [
            Event(kind=kind, fields=fields, time=now - 4 + number, **origin).document()
            for number, (kind, fields) in enumerate(kinds.items())
        ]
        head = {"version": VERSION, "cluster": _CLUSTER, "node": _CLUSTER, "sent": round(now, 3)}
        return {**head, "events": events}

    def _canary(self) -> Step:
        command = [sys.executable, "-P", "-m", "lockstep_cli.main", "canary"]
        words = ["--dir", str(self._at.folder), "--alertmanager", self._at.alertmanager]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        lines = [
            line for line in (done.stdout + done.stderr).splitlines() if line.startswith("canary-")
        ]
        return Step("canary", done.returncode == 0, lines[-1] if lines else "it could not run")


def _until(seconds: float, see: Callable[[], Any]) -> Any:
    """What is seen first that is true; the last one otherwise."""
    deadline = time.monotonic() + seconds
    while not (seen := see()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return seen


def _text_of(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
