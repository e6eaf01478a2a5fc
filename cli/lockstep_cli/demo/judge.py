"""Compares the fault that the demo injected with the claims of pager and report."""

import html
import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lockstep_records.text.durations import parse_duration

_PHASE_OF_FAULT = {"loader": "data"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """The injected fault: the slow rank, or None, its phase, and its time on the wall clock."""

    rank: int | None
    phase: str
    from_wall_seconds: float
    until_wall_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedPage:
    """One notification that reached the pager."""

    status: str
    alert: str
    rank: str
    phase: str
    wall_seconds: float
    summary: str
    notified_within_seconds: float

    @property
    def sentence(self) -> str:
        """The page in one line."""
        return f"[{self.status}] {self.alert}: {self.summary}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """Pages, verdict, and the headline of the HTML report."""

    pages: tuple[ReceivedPage, ...]
    verdict: dict[str, Any]
    headline: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One expectation, and whether it holds."""

    holds: bool
    sentence: str


def read_claims(out: Path, job_id: str) -> Claims:
    """Every claim about a job, from the files of pager and report."""
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    page = (out / "report.html").read_text(encoding="utf-8")
    headline = re.search(r"<h1[^>]*>(?:<span.*?</span>)?(.*?)</h1>", page, re.DOTALL)
    return Claims(
        pages=tuple(read_pages(out, job_id)),
        verdict=report["verdict"],
        headline=html.unescape(headline[1]).strip() if headline else "",
    )


def read_pages(out: Path, job_id: str) -> list[ReceivedPage]:
    """Pages of a job, in the order of arrival."""
    path = out / "stack" / "pages.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        _received_page(notification, alert)
        for notification in map(json.loads, lines)
        if notification["receiver"] == "pager"
        for alert in notification["alerts"]
        if alert["labels"].get("job_id") == job_id
    ]


def _received_page(notification: dict[str, Any], alert: dict[str, Any]) -> ReceivedPage:
    labels = alert["labels"]
    return ReceivedPage(
        status=alert["status"],
        alert=labels["alertname"],
        rank=labels.get("rank", ""),
        phase=labels.get("phase", ""),
        wall_seconds=datetime.fromisoformat(notification["time"]).timestamp(),
        summary=alert["annotations"].get("summary", ""),
        notified_within_seconds=parse_duration(alert["annotations"]["notified_within"]),
    )


def judge(truth: Truth, claims: Claims) -> list[Finding]:
    """The expectations that follow from the injected fault, held against the claims."""
    return _judge_nobody(claims) if truth.rank is None else _judge_one_rank(truth, claims)


def _judge_nobody(claims: Claims) -> list[Finding]:
    return [
        Finding(holds=not claims.pages, sentence=f"{len(claims.pages)} pages, 0 expected"),
        Finding(
            holds=claims.verdict["kind"] == "nobody",
            sentence=f"verdict is {claims.verdict['kind']}, nobody expected",
        ),
        Finding(
            holds="nobody" in claims.headline.lower() or "no rank" in claims.headline.lower(),
            sentence=f"the report's headline: {claims.headline}",
        ),
    ]


def _judge_one_rank(truth: Truth, claims: Claims) -> list[Finding]:
    phase = _PHASE_OF_FAULT.get(truth.phase, truth.phase)
    right = [p for p in claims.pages if p.rank == str(truth.rank) and p.phase == phase]
    firing = [p for p in right if p.status == "firing"]
    resolved = [p for p in right if p.status == "resolved"]
    delay = firing[0].wall_seconds - truth.from_wall_seconds if firing else float("inf")
    after = resolved[-1].wall_seconds - truth.until_wall_seconds if resolved else float("nan")
    within_seconds = firing[0].notified_within_seconds if firing else 0.0
    verdict = claims.verdict
    return [
        Finding(
            holds=0 <= delay <= within_seconds,
            sentence=f"page names rank {truth.rank} and {phase}, {delay:.0f} s after the slowdown "
            f"began (at most {within_seconds:.0f} s)",
        ),
        Finding(
            holds=bool(resolved) and after > 0,
            sentence=f"resolved {after:.0f} s after recovery",
        ),
        Finding(
            holds=len(firing) == 1 and len(right) == len(claims.pages),
            sentence=f"paged {len(firing)} times, once expected; "
            f"{len(claims.pages) - len(right)} other pages, 0 expected",
        ),
        Finding(
            holds=verdict["kind"] == "rank"
            and verdict["ranks"] == [truth.rank]
            and verdict["phase"] == phase,
            sentence=f"verdict names {verdict['ranks']} and {verdict['phase']}",
        ),
        Finding(
            holds=f"rank {truth.rank} " in claims.headline.lower() and phase in claims.headline,
            sentence=f"the report's headline: {claims.headline}",
        ),
    ]
