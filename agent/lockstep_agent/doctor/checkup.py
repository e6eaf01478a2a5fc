"""The examination of a node: its verdicts, and its measured figures against those of a fleet."""

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep_agent.health.judge import Judge, Limits, health_of
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.sources.job_processes import missing_words
from lockstep_agent.sources.process_job import hiding_words
from lockstep_catalogue.incidents import DEGRADED, FAILED, OK
from lockstep_records.delivery.sender import LedgerAddress, post
from lockstep_records.distribution import install_hint
from lockstep_records.files.node_figure import Figure, format_rate, published_rate
from lockstep_records.text.documents import decode_json, read_toml
from lockstep_records.text.durations import format_duration
from lockstep_records.text.printable import printable

_MAX_FILE_BYTES = 256 << 20
_MAX_LINE_BYTES = 4 << 20
ADVICE = read_toml(Path(__file__).with_suffix(".toml"))
STATUS = {OK: 0, DEGRADED: 1, FAILED: 2}
COLOUR = {OK: "green", DEGRADED: "yellow", FAILED: "red"}
_NUM_SAMPLES = 4
_PROBE_TIMEOUT_SECONDS = 300.0
_MAX_PROBE_SECONDS = 60.0
_NO_TORCH = "No module named 'torch'"
_SKIPPED = (
    "GPUs, memory and all-reduce were not measured: torch is not installed here; "
    + install_hint("trainer")
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure and the fleet's median of the same probe and device; None where there is none."""

    figure: Figure
    median: float | None
    too_slow: bool


def parse_figures(preflight: Any) -> list[Figure]:
    """The figures that ``python -m lockstep.preflight`` prints, or the doctor around them.

    Raises:
        ValueError: it holds none.
    """
    # the output of `lockstep doctor --preflight --json` holds that of the probe
    if isinstance(preflight, dict) and isinstance(preflight.get("preflight"), dict):
        preflight = preflight["preflight"]
    try:
        return [_figure(row) for row in preflight["figures"]]
    except (KeyError, TypeError) as error:
        raise ValueError("it holds no figures of a preflight") from error


def _figure(row: Any) -> Figure:
    figure = Figure(**{each.name: row[each.name] for each in fields(Figure)})
    value = figure.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"value {value!r} of probe {figure.probe!r} is not a number")
    if not all(isinstance(text, str) for text in (figure.probe, figure.device, figure.unit)):
        raise ValueError(f"probe {figure.probe!r} has a name that is not text")
    return figure


def read_fleet(path: Path) -> list[Figure]:
    """The figures of a fleet: one JSON object a line, as ``--preflight --json`` prints.

    Raises:
        ValueError: one sentence on what is wrong with the file.
    """
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"{path} is longer than {_MAX_FILE_BYTES} bytes")
    figures: list[Figure] = []
    with path.open("rb") as file:
        for line_number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), 1):
            if not line.strip():
                continue
            try:
                figures += parse_figures(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {line_number}: {_reason(error)}") from error
    if not figures:
        raise ValueError(f"{path} is empty; give what --preflight --json printed on other nodes")
    return figures


def _reason(error: Exception) -> str:
    return "no JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)


def compare(
    own: Iterable[Figure], fleet: Sequence[Figure], slower_than_ratio: float
) -> Iterator[Comparison]:
    """Each figure of this node with the median of its kind in the fleet."""
    for figure in own:
        # A fleet may have several products; only figures of the same one are comparable.
        kind = (figure.probe, figure.device, figure.unit)
        values = [other.value for other in fleet if (other.probe, other.device, other.unit) == kind]
        median = statistics.median(values) if values else None
        too_slow = median is not None and figure.value < slower_than_ratio * median
        yield Comparison(figure, median, too_slow)


def check_up(
    url: str | None, duration_seconds: float, options: Options, *, measures: bool,
    fleet: Path | None, slower_than_ratio: float, output: str | None,
) -> int:  # fmt: skip
    """Prints the verdicts and, where it measures, the figures of GPUs, memory and all-reduce.

    The verdicts are those of the agent at ``url``, or of samples that are taken here: a sign that
    may pass counts when it is there for all of the duration. A figure is too slow below that ratio
    of the fleet's median; ``fleet`` is a file of the figures of other nodes.

    Returns:
        0 when the node is ok, 1 when a part is degraded or slow, 2 when one failed.

    Raises:
        click.UsageError: the agent does not answer, the fleet cannot be read, the probe fails.
    """
    try:
        others = read_fleet(fleet) if fleet else []
    except (ValueError, OSError) as error:
        raise click.UsageError(f"--fleet: {error}") from error
    health = _ask(url) if url else _sample(options, duration_seconds)
    preflight = measure_node(duration_seconds) if measures else {}
    figures = parse_figures(preflight) if measures else []
    comparisons = list(compare(figures, others, slower_than_ratio))
    if output is not None:
        measured = {"preflight": _as_json(preflight, comparisons)} if measures else {}
        write_json(health | measured, output)
    else:
        _print(health, comparisons)
        missing = () if url else missing_words().values()
        for words in filter(None, (hiding_words(options.procfs), *missing)):
            click.echo(words)
        if "skipped" in preflight:
            click.echo(printable(f"preflight: {preflight['skipped']}"))
    # An agent of another version may have a verdict that is not known here.
    status = STATUS.get(health["verdict"], 2)
    return max([status, *(STATUS[DEGRADED] for each in comparisons if each.too_slow)])


def write_json(document: Mapping[str, Any], output: str) -> None:
    """Writes a document into a file, or to standard output for ``-``.

    Raises:
        click.UsageError: the file cannot be written.
    """
    text = json.dumps(document, ensure_ascii=False)
    if output == "-":
        click.echo(text)
        return
    try:
        Path(output).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        reason = f"--json {output}: {error.strerror}; give a file to write"
        raise click.UsageError(reason) from error


def _sample(options: Options, duration_seconds: float) -> dict[str, Any]:
    """The verdicts of some samples taken here."""
    # A little less than the whole time: the first sample is not taken at its very begin.
    hold_seconds = duration_seconds * 0.9
    limits = Limits(link_hold_seconds=hold_seconds, throttle_hold_seconds=hold_seconds)
    options = replace(
        options,
        tick_seconds=duration_seconds / _NUM_SAMPLES,
        scrape_seconds=duration_seconds,
        linger_seconds=0.0,
        state=None,  # an agent that runs on the node keeps its state there
        without=(*options.without, "ras"),  # and asks NCCL's sockets as seldom as it has to
    )
    sampler = Sampler(
        CollectorRuntime(options), options.tick, judge=Judge(options.expected, limits)
    )
    exposition = sampler.sample()
    for _ in range(_NUM_SAMPLES):
        time.sleep(options.tick)
        exposition = sampler.sample()
    return health_of(exposition, options.node)


def _ask(url: str) -> dict[str, Any]:
    """The verdicts of an agent that runs."""
    if not url.startswith(("http://", "https://")) or not url.isprintable():
        raise click.UsageError(
            f"--url {url!r} is not an address; give one that begins with http://"
        )
    address = url.rstrip("/").removesuffix("/metrics").removesuffix("/health") + "/health"
    try:
        answer = post(LedgerAddress(url=address), None)
        health = decode_json(answer.body)
        return {"node": str(health["node"]), "verdict": str(health["verdict"])} | {
            "reasons": [str(reason) for reason in health["reasons"]],
            "at_seconds": health["at_seconds"],
            "parts": [_part(part) for part in health["parts"]],
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise click.UsageError(
            f"--url {url}: no verdicts of an agent there ({reason}); give the address that it logs"
        ) from error


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    """One part of an agent's answer, with texts for all values."""
    texts = {key: str(value) for key, value in part.items() if key != "reasons"}
    required = {key: texts[key] for key in ("kind", "name", "verdict")}
    return texts | required | {"reasons": [str(reason) for reason in part["reasons"]]}


def measure_node(
    duration_seconds: float, *more: str, timeout_seconds: float = _PROBE_TIMEOUT_SECONDS
) -> dict[str, Any]:
    """The output of the probe, which is a child of its own because it needs torch.

    Raises:
        click.UsageError: the probe fails, or does not end in time.
    """
    duration = format_duration(min(duration_seconds, _MAX_PROBE_SECONDS))
    command = [sys.executable, "-P", "-m", "lockstep.preflight", "--duration", duration, *more]
    try:
        probe = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_seconds
        )
    except subprocess.TimeoutExpired as error:
        raise click.UsageError(
            f"the measurement did not end in {timeout_seconds:g} s: a device or the network hangs"
        ) from error
    # Libraries of the child may print before the probe does.
    last_line = probe.stdout.strip().rpartition("\n")[2]
    try:
        preflight: dict[str, Any] = json.loads(last_line)
        parse_figures(preflight)
    except ValueError as error:
        message = probe.stderr.strip().rpartition("\n")[2] or "it wrote nothing"
        # A node is not unfit because nobody has installed torch for the agent: exit status 2 would
        # drain it.
        if _NO_TORCH in message:
            return {"skipped": _SKIPPED, "figures": []}
        raise click.UsageError(f"the measurement failed: {message}") from error
    return preflight


def _as_json(preflight: Mapping[str, Any], comparisons: list[Comparison]) -> dict[str, Any]:
    skipped = {"skipped": preflight["skipped"]} if "skipped" in preflight else {}
    return skipped | {
        "torch": preflight.get("torch"),
        "figures": [
            asdict(each.figure) | {"fleet_median": each.median, "too_slow": each.too_slow}
            for each in comparisons
        ],
    }


def _print(health: Mapping[str, Any], comparisons: list[Comparison]) -> None:
    console = Console()
    table = Table("part", "verdict", "reasons", "what to do", title=_text(f"node {health['node']}"))
    for part in health["parts"]:
        _add_row(table, f"{part['kind']} {part['name']}", part["verdict"], part["reasons"])
    _add_row(table, "node", health["verdict"], health["reasons"])
    console.print(table)
    if comparisons:
        console.print(_figures_table(comparisons))


def _add_row(table: Table, part: str, verdict: str, reasons: list[str]) -> None:
    advice = "; ".join(ADVICE[reason] for reason in reasons if reason in ADVICE)
    colour = COLOUR.get(verdict, "red")
    table.add_row(_text(part), _text(verdict, colour), _text(", ".join(reasons)), advice)


def _text(text: str, style: str = "") -> Text:
    """A text of another machine, without what a terminal or rich would obey."""
    return Text(printable(text), style=style)


def _figures_table(comparisons: list[Comparison]) -> Table:
    columns = ("probe", "device", "measured", "published peak", "fleet's median", "")
    table = Table(*columns, title="preflight")
    for comparison in comparisons:
        figure, median = comparison.figure, comparison.median
        published = published_rate(figure)
        table.add_row(
            figure.probe,
            _text(figure.device if figure.index is None else f"{figure.index}: {figure.device}"),
            format_rate(figure.value, figure.unit),
            "" if published is None else format_rate(published, figure.unit),
            "none of its kind" if median is None else format_rate(median, figure.unit),
            "[red]too slow[/]" if comparison.too_slow else "",
        )
    return table
