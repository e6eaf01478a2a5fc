"""``lockstep doctor``: looks at the node, measures it when asked, prints and judges both."""

import json
import platform
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from lockstep_agent.doctor.fleet import Compared, compare, figures_of, read_fleet
from lockstep_agent.health import Expectations, Judge, Limits
from lockstep_agent.health.advice import ADVICE
from lockstep_agent.health.page import health_of
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_catalogue.verdicts import DEGRADED, FAILED, OK
from lockstep_records.durations import format_duration
from lockstep_records.jobs import find_root

_STATUS = {OK: 0, DEGRADED: 1, FAILED: 2}
_COLOUR = {OK: "green", DEGRADED: "yellow", FAILED: "red"}
_LOOKS = 4
_MOST_BYTES = 8 << 20
_ANSWER_SECONDS = 10.0
_PROBE_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """How to look at the node.

    Attributes:
        url: of an agent that is asked instead; None to look oneself.
        seconds: how long; signs that may pass count when they are there all the time.
    """

    url: str | None
    seconds: float
    expected: Expectations
    sysfs: Path
    procfs: Path
    nvml_library: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What to compare the measured figures with; None with nothing."""

    fleet: Path | None
    slower_than_ratio: float


def check_up(look: Look, probe: Probe | None, *, as_json: bool) -> int:
    """Prints the verdicts and, with a probe, the figures.

    Returns:
        0 when all is well, 1 when something is degraded or slow, 2 when something failed.

    Raises:
        click.UsageError: the agent does not answer, the fleet cannot be read, the probe fails.
    """
    try:
        fleet = read_fleet(probe.fleet) if probe and probe.fleet else []
    except (ValueError, OSError) as error:
        raise click.UsageError(f"--fleet: {error}") from error
    told = _ask(look.url) if look.url else _look(look)
    measured = _measure(look.seconds) if probe else {}
    ratio = probe.slower_than_ratio if probe else 1.0
    compared = list(compare(figures_of(measured), fleet, ratio)) if probe else []
    if as_json:
        click.echo(
            json.dumps(told | ({"preflight": _as_json(measured, compared)} if probe else {}))
        )
    else:
        _print(told, compared)
    slow = any(one.too_slow for one in compared)
    return max(_STATUS.get(told["verdict"], 2), _STATUS[DEGRADED] if slow else 0)


def _look(look: Look) -> dict[str, Any]:
    """The verdicts of some samples taken here."""
    hold_seconds = look.seconds * 0.9
    limits = Limits(link_hold_seconds=hold_seconds, throttle_hold_seconds=hold_seconds)
    options = Options(
        host="",
        port=0,
        root=find_root(),
        cluster="",
        node=platform.node(),
        tick_seconds=look.seconds / _LOOKS,
        linger_seconds=0,
        window_seconds=look.seconds,
        sysfs=look.sysfs,
        procfs=look.procfs,
        nvml_library=look.nvml_library,
    )
    runtime = CollectorRuntime(options)
    sampler = Sampler(runtime, options.tick_seconds, judge=Judge(look.expected, limits))
    latest = sampler.sample()
    for _ in range(_LOOKS):
        time.sleep(options.tick_seconds)
        latest = sampler.sample()
    return health_of(latest, options.node)


def _ask(url: str) -> dict[str, Any]:
    """The verdicts of an agent that runs."""
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url {url!r} is no address; give one that begins with http://")
    address = url.rstrip("/").removesuffix("/metrics").removesuffix("/health") + "/health"
    try:
        with urllib.request.urlopen(address, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  # http only, checked
            told = json.loads(answer.read(_MOST_BYTES))
        return {"node": str(told["node"]), "verdict": str(told["verdict"])} | {
            "reasons": [str(reason) for reason in told["reasons"]],
            "at_seconds": told["at_seconds"],
            "parts": [_part(part) for part in told["parts"]],
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else type(error).__name__
        raise click.UsageError(
            f"--url {url}: no verdicts of an agent there ({why}); give the address that it says"
        ) from error


def _part(told: dict[str, Any]) -> dict[str, Any]:
    texts = {key: str(value) for key, value in told.items() if key != "reasons"}
    required = {key: texts[key] for key in ("kind", "name", "verdict")}
    return texts | required | {"reasons": [str(reason) for reason in told["reasons"]]}


def _measure(seconds: float) -> Any:
    """What the probe prints; it needs torch, so it is a child of its own."""
    duration = format_duration(min(seconds, 60.0))
    command = [sys.executable, "-m", "lockstep.preflight", "--duration", duration]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_PROBE_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise click.UsageError(
            f"--preflight did not end in {_PROBE_SECONDS:g} s: a device or the network hangs"
        ) from error
    last = done.stdout.strip().rpartition("\n")[2]
    try:
        told = json.loads(last)
        figures_of(told)
    except ValueError as error:
        said = done.stderr.strip().rpartition("\n")[2] or "it said nothing"
        raise click.UsageError(
            f"--preflight failed: {said}; it needs torch, of the extra 'trainer'"
        ) from error
    return told


def _as_json(measured: Any, compared: list[Compared]) -> dict[str, Any]:
    return {
        "torch": measured.get("torch"),
        "figures": [
            asdict(one.figure) | {"fleet_median": one.median, "too_slow": one.too_slow}
            for one in compared
        ],
    }


def _print(told: dict[str, Any], compared: list[Compared]) -> None:
    console = Console()
    table = Table("part", "verdict", "reasons", "what to do", title=f"node {told['node']}")
    for part in told["parts"]:
        _row(table, f"{part['kind']} {part['name']}", part["verdict"], part["reasons"])
    _row(table, "node", told["verdict"], told["reasons"])
    console.print(table)
    if compared:
        figures = Table("probe", "device", "measured", "fleet's median", "", title="preflight")
        for one in compared:
            figure, median = one.figure, one.median
            device = figure.device if figure.index is None else f"{figure.index}: {figure.device}"
            told_median = "none of its kind" if median is None else f"{median:.3g}"
            slow = "[red]too slow[/]" if one.too_slow else ""
            measured = f"{figure.value:.3g} {figure.unit}"
            figures.add_row(figure.probe, device, measured, told_median, slow)
        console.print(figures)


def _row(table: Table, part: str, verdict: str, reasons: list[str]) -> None:
    shown = f"[{_COLOUR.get(verdict, 'red')}]{verdict}[/]"
    advice = "; ".join(ADVICE[reason] for reason in reasons if reason in ADVICE)
    table.add_row(part, shown, ", ".join(reasons), advice)
