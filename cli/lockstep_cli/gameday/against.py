"""The dry run against somebody's own installation: marked alerts and events, by the public ways.

Each step is one sentence of what was seen. What was made is ended and taken back, whatever happens;
the ledger keeps its record, by its class a synthetic one, which no objective counts.
"""

import functools
import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from lockstep_catalogue.ledger import SLO_EVENTS
from lockstep_catalogue.vocabulary import SYNTHETIC_CLASS
from lockstep_cli.options import bad_input, refuse_others
from lockstep_records.delivery.exchange import Server
from lockstep_records.events.event import Event
from lockstep_records.events.kinds import VERSION
from lockstep_records.text.printable import printable

_MARK, _CLUSTER = "synthetic", "gameday"
_USES: Mapping[str, Mapping[str, str]] = {
    "page": {"severity": "critical", "incident": "gameday"},
    "ticket": {"severity": "warning"},
    "owners": {"severity": "warning", "route": "owners", "project": "gameday"},
}
_SUMMARY = "DRY RUN of lockstep gameday: nothing is wrong, and nothing is to be done"
_SEEN_SECONDS, _NOTIFIED_SECONDS = 30.0, 90.0
_MAX_CONFIG = 1 << 20
_ERRORS = (ValueError, OSError)  # of servers, of files of tokens and certificates
_REQUESTS = re.compile(
    r"^alertmanager_notification_requests(_failed)?_total"
    r'\{integration="(\w+)".{0,999}\} ([0-9.e+]+)$',
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """Where it answers; what has no address is not tried.

    Attributes:
        url: of its Alertmanager, for the canary.
        notify: whether the receivers are tried too: somebody is notified, and of the end again.
        folder: of pages on this node, where a canary runs; None runs none.
    """

    alertmanager: Server
    url: str
    prometheus: Server | None
    ledger: Server | None
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
        own = {each: options.pop(each) for each in _OPTIONS}
        if own["url"] is None:
            refuse_others(options, "without --against")
            return command(**options)
        refuse_others(own, "with --against")
        with bad_input():
            installation = _installation(**own)
        return prove(installation)

    return functools.reduce(lambda inner, option: option(inner), reversed(_OPTIONS.values()), run)


def _installation(*, token_file: Path | None, ca_file: Path | None, **options: Any) -> Installation:
    def server(url: str | None, product: str, **more: Path | None) -> Server | None:
        return None if url is None else Server(url, product, ca_file=ca_file, **more)

    alertmanager = server(options["url"], "Alertmanager")
    assert alertmanager is not None
    options["prometheus"] = server(options["prometheus"], "Prometheus")
    options["ledger"] = server(options["ledger"], "ledger", token_file=token_file)
    return Installation(alertmanager=alertmanager, **options)


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS: dict[str, Callable[..., Any]] = {
    "url": click.option(
        "--against",
        "url",
        help="Alertmanager of your own installation: a dry run with marked alerts instead.",
    ),
    "prometheus": click.option("--prometheus", help="Its Prometheus."),
    "ledger": click.option("--ledger", help="Its ledger."),
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
    for step in DryRun(installation).steps():
        held.append(step.holds)
        click.echo(f"{words[step.holds]:<10}{step.name:<24}{printable(step.seen)}")
    return int(False in held)


class DryRun:
    """One dry run; its id is in the label ``synthetic`` of all that it makes."""

    def __init__(self, installation: Installation) -> None:
        self._at, self.id = installation, f"gameday-{uuid.uuid4().hex[:12]}"
        self._receivers = dict[str, list[str]]()

    def steps(self) -> Iterator[Step]:
        """Each step when it is done; all is taken back at the end."""
        silence = ""
        first = self._try("alertmanager", self._status)
        yield first
        if not first.holds:
            yield Step("the rest", None, "nothing more was tried, and nothing was sent")
            return
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
        except _ERRORS as error:
            yield Step("synthetic alerts", False, str(error))
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
        except _ERRORS as error:
            return Step(name, False, str(error))
        return Step(name, True, seen) if isinstance(seen, str) else seen

    def _status(self) -> str:
        import yaml  # noqa: PLC0415  # --help need not wait for it

        def read(status: Any) -> str:
            text = status["config"]["original"]
            if len(text) > _MAX_CONFIG:
                raise ValueError("no configuration is as large")
            try:
                config = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise ValueError("no YAML") from error
            self._receivers = {
                each["name"]: [key.removesuffix("_configs") for key in each if key != "name"]
                for each in config["receivers"]
            }
            names = ", ".join(sorted(self._receivers))
            return f"version {status['versionInfo']['version']}, receivers {names}"

        return self._at.alertmanager.ask("/api/v2/status", read)

    def _watchdog(self) -> Step:
        # Of a Prometheus that has just started it comes a minute later.
        names = _until(
            _NOTIFIED_SECONDS, lambda: self._receivers_of({"alertname": "TrainWatchdog"})
        )
        seen = f"TrainWatchdog is there, for {', '.join(names)}"
        return Step("watchdog", bool(names), seen if names else "TrainWatchdog is not there")

    def _receivers_of(self, labels: Mapping[str, str]) -> list[str]:
        """Receivers of the alerts that have the labels."""

        def read(alerts: Any) -> list[str]:
            ours = [each for each in alerts if labels.items() <= each["labels"].items()]
            return sorted({str(to["name"]) for each in ours for to in each["receivers"]})

        query = [f'filter={name}="{value}"' for name, value in labels.items()]
        return self._at.alertmanager.ask("/api/v2/alerts", read, query)

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
        return self._at.alertmanager.post(
            "/api/v2/silences", body, lambda answer: str(answer["silenceID"])
        )

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
        self._at.alertmanager.send("POST", "/api/v2/alerts", json.dumps(body).encode())

    def _route(self, use: str) -> Step:
        names = _until(_SEEN_SECONDS, lambda: self._receivers_of({_MARK: self.id, "use": use}))
        ways = {name: self._receivers.get(name, []) for name in names}
        empty = [name for name, kinds in ways.items() if not kinds]
        seen = "; ".join(
            f"{name} by {', '.join(kinds) or 'nothing'}" for name, kinds in ways.items()
        )
        return Step(f"route of {use}", bool(names) and not empty, seen or "no such alert came")

    def _requests(self) -> dict[tuple[str, str], float]:
        text = self._at.alertmanager.send("GET", "/metrics").decode(errors="replace")
        return {(kind, failed): float(n) for failed, kind, n in _REQUESTS.findall(text)}

    def _notified(self, before: Mapping[tuple[str, str], float]) -> Step:
        if not self._at.notify:
            return Step("receivers", None, "--notify tries them, and notifies whoever is behind")
        names = self._receivers_of({_MARK: self.id})
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
        seen = f"requests of {', '.join(names)}: " + (
            ", ".join(f"{kind} {n:g}" for kind, n in sent.items()) or "none"
        )
        seen += f"; failed: {', '.join(failed)}" if failed else ""
        return Step("receivers", sum(sent.values()) >= enough and not failed, seen)

    def _clean_up(self, silence: str) -> Step:
        self._alerts(timedelta())
        gone = _until(_SEEN_SECONDS, lambda: not self._receivers_of({_MARK: self.id}))
        if silence:
            self._at.alertmanager.send("DELETE", f"/api/v2/silence/{quote(silence, safe='')}")
        seen = f"alerts have ended{', the silence is deleted' if silence else ''}"
        return Step("clean up", bool(gone), seen if gone else "alerts are still there; they end")

    def _rules(self) -> Step:
        assert self._at.prometheus is not None
        ask = self._at.prometheus.ask

        def read(answer: Any) -> tuple[int, list[str]]:
            groups = [each for each in answer["data"]["groups"] if "lockstep-" in each["name"]]
            rules = [rule for group in groups for rule in group["rules"]]
            return len(rules), sorted(
                {str(each["name"]) for each in rules if each["health"] == "err"}
            )

        rules, sick = ask("/api/v1/rules", read)
        managers = ask(
            "/api/v1/alertmanagers", lambda answer: len(answer["data"]["activeAlertmanagers"])
        )
        query = ['query=count(up{job=~".*lockstep-agent"} == 1) or vector(0)']
        agents = ask(
            "/api/v1/query", lambda answer: float(answer["data"]["result"][0]["value"][1]), query
        )
        seen = f"{rules} rules, {managers} Alertmanagers, {agents:g} agents answer"
        seen += f"; failing: {', '.join(sick)}" if sick else ""
        return Step("prometheus", bool(rules and not sick and managers and agents), seen)

    def _record(self) -> Step:
        assert self._at.ledger is not None
        ask = self._at.ledger.ask
        refused = self._at.ledger.post(
            "/api/events",
            self._events(),
            lambda answer: [str(e["reason"]) for e in answer.get("rejected", ())],
        )
        if refused:
            return Step("ledger", False, f"refused: {refused[0]}")

        def record() -> Any:
            with suppress(*_ERRORS):
                return ask(
                    f"/api/jobs/{self.id}",
                    lambda found: (
                        found["outcome"] and (str(found["outcome"]), str(found["job_class"]))
                    ),
                    [f"cluster={_CLUSTER}"],
                )

        found = _until(_SEEN_SECONDS, record)
        if not found:
            return Step("ledger", False, "its events were taken, and no record came of them")
        text = self._at.ledger.send("GET", "/metrics").decode(errors="replace")
        labels = f'.{{0,999}}job_class="{SYNTHETIC_CLASS}".{{0,999}}'
        pattern = rf"^{SLO_EVENTS.name}\{{{labels}\}} ([0-9.e+]+)$"
        counted = sum(map(float, re.findall(pattern, text, re.MULTILINE)))
        seen = f"outcome {found[0]}, class {found[1]}, in {counted:g} objectives"
        return Step("ledger", found[1] == SYNTHETIC_CLASS and not counted, seen)

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
        words = ["--dir", str(self._at.folder), "--alertmanager", self._at.url]
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
