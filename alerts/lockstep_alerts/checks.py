"""Checks of generated files by promtool and amtool, and the commands that run them."""

import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console

from lockstep_alerts.alert import AREAS, RULES_FILES
from lockstep_alerts.capacity import refusal
from lockstep_alerts.output import GENERATED, ROUTES_FILE, rule_groups, severity_of, to_yaml
from lockstep_alerts.reading.entry import SpecError
from lockstep_alerts.reading.limits import Size
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing.tree import route_cases
from lockstep_alerts.spec import Spec
from lockstep_catalogue.labels import CLUSTER, GPU, JOB_ID, LINK, LOCAL_RANK, NODE, RANK, UUID
from lockstep_catalogue.metric import Kind, Label, Metric
from lockstep_catalogue.series_budget import SPARSE
from lockstep_cli.options import option
from lockstep_prometheus.promql import (
    AggregateExpr,
    BinaryExpr,
    Expr,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    Selector,
    SubqueryExpr,
    children,
    nodes,
    parse,
    selectors,
)
from lockstep_records.text.durations import parse_duration

_METACHARACTERS = set(".*+?()[]{}|^$\\")


def findings(rule_files: list[Path]) -> Iterator[str]:
    """One sentence for each fault of a rule, with the file and the rule's name."""
    listed = [
        (path, group)
        for path in rule_files
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]
    recorded = [
        {rule["record"] for rule in group["rules"] if "record" in rule} for _, group in listed
    ]
    for (path, group), own in zip(listed, recorded, strict=True):
        foreign = set().union(*recorded) - own
        for rule in group["rules"]:
            name = rule.get("alert") or rule["record"]
            for fault in _faults(rule, foreign):
                yield f"{path.name}: {name}: {fault}"


def _faults(rule: Mapping[str, Any], foreign: set[str]) -> Iterator[str]:
    try:
        tree = parse(rule["expr"])
    except ValueError as error:
        yield str(error)
        return
    for selector in selectors(rule["expr"]):
        for label, operator, value in selector.matchers:
            if operator in ("=~", "!~") and not _METACHARACTERS & set(value):
                yield f"{label} is compared by a pattern with {value!r}; write an equality"
        if selector.name in foreign and not selector.range_seconds:
            yield (
                f"{selector.name} is recorded in another group; say by last_over_time how old "
                "it may be"
            )
    for divisor in _aggregated_divisors(tree):
        yield f"{divisor} may be 0 in an aggregation, and 0 / 0 spoils it; write (... > 0)"
    if "alert" in rule and "for" not in rule:
        for comparison in filter(_is_upper_bound_of_window, nodes(tree)):
            text = comparison.prettify()
            yield f"a restart empties the window before {text!r}; give the alert a for"


def _aggregated_divisors(node: Expr, is_aggregated: bool = False) -> Iterator[str]:
    is_aggregated = is_aggregated or isinstance(node, AggregateExpr)
    if isinstance(node, BinaryExpr) and is_aggregated and str(node.op) == "/":
        yield from () if _is_guarded(node.rhs) else (node.rhs.prettify(),)
    for child in children(node):
        yield from _aggregated_divisors(child, is_aggregated)


def _is_guarded(divisor: Expr) -> bool:
    while isinstance(divisor, ParenExpr):
        divisor = divisor.expr
    if isinstance(divisor, BinaryExpr) and str(divisor.op) == ">":
        return isinstance(divisor.rhs, NumberLiteral) and divisor.rhs.val == 0
    return isinstance(divisor, NumberLiteral)


def _is_upper_bound_of_window(node: Expr) -> bool:
    """Whether a window, and nothing computed of it and others, is compared from above.

    One that a restart has emptied holds less than it should: only a lower bound is passed so.
    """
    if not isinstance(node, BinaryExpr) or str(node.op) not in ("<", "<=", "=="):
        return False
    # Of what is never negative, to be 0 is an upper bound, and to be 1 is none.
    if str(node.op) == "==" and not (isinstance(node.rhs, NumberLiteral) and node.rhs.val == 0):
        return False
    operands = list(nodes(node.lhs))
    return any(isinstance(each, MatrixSelector | SubqueryExpr) for each in operands) and not any(
        isinstance(each, BinaryExpr) for each in operands
    )


SERIES_SECONDS, SAMPLE_SECONDS = 4e-6, 1e-7
"""To find a series and carry its labels through an expression, and to decode and add a sample."""
_SPARSE_RATIO = 0.05
"""Share of the series of counters of rare faults that are served: those above zero."""
_CLASSES, _DEVICES, _LINKS = 5, 8, 18
"""Classes and queues of jobs; adapters of a node; NVLinks of a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleCost:
    """One rule: how much it reads, and the time between two evaluations."""

    group: str
    rule: str
    num_series: float
    num_samples: float
    every_seconds: float

    @property
    def seconds(self) -> float:
        """Estimated time of an evaluation, on one core."""
        return self.num_series * SERIES_SECONDS + self.num_samples * SAMPLE_SECONDS


def costs(spec: Spec) -> Iterator[RuleCost]:
    """Every rule of the spec with its estimated cost."""
    for area in AREAS:
        if not spec.alerts_of(area):
            continue
        for group in rule_groups(area, spec, Delivery()):
            every = parse_duration(str(group["interval"]))
            rules = group["rules"]
            assert isinstance(rules, list)
            for rule in rules:
                reads = [each for each in selectors(rule["expr"]) if each.series]
                numbers = [_num_series(each, spec.size) for each in reads]
                samples = [
                    number * max(1.0, each.range_seconds / _step(each, spec))
                    for each, number in zip(reads, numbers, strict=True)
                ]
                yield RuleCost(
                    group=str(group["name"]),
                    rule=rule.get("alert") or rule["record"],
                    num_series=math.fsum(numbers),
                    num_samples=math.fsum(samples),
                    every_seconds=every,
                )


def refuse_too_costly(spec: Spec) -> None:
    """Refuses a spec of which a rule takes longer than its interval, by a SpecError."""
    for cost in costs(spec):
        if cost.seconds > cost.every_seconds:
            ratio = cost.every_seconds / cost.seconds
            ranks, nodes = int(spec.size.ranks * ratio), int(spec.size.nodes * ratio)
            raise SpecError(
                f"{spec.size.location}: size: rule {cost.rule} of group {cost.group} would read "
                f"{cost.num_samples:,.0f} samples of {cost.num_series:,.0f} series, an estimated "
                f"{cost.seconds:.1f}s, every {cost.every_seconds:g}s; one Prometheus evaluates it "
                f"for about {ranks:,} ranks on {nodes:,} nodes: divide the clusters among several, "
                "or lengthen scrape_interval"
            )


def _step(selector: Selector, spec: Spec) -> float:
    is_scraped = isinstance(selector.series, Metric)
    return spec.windows.scrape_seconds if is_scraped else max(60, spec.windows.evaluation_seconds)


def _num_series(selector: Selector, size: Size) -> float:
    """Series that a selector finds: where they are, times the values of their other labels."""
    series = selector.series
    assert series is not None
    labels = series.exposed_labels
    number = float(_places(set(labels), size))
    by_name = {label.name: label for label in labels}
    for label in by_name.values():
        number *= _num_values(label, selector)
    if series in SPARSE:
        number *= _SPARSE_RATIO
    if isinstance(series, Metric) and series.kind is Kind.HISTOGRAM and "_bucket" in selector.name:
        number *= len(series.buckets) + 1
    return number


def _places(labels: set[Label], size: Size) -> int:
    """Ranks, GPUs, nodes or jobs: each rank is on one node and of one job."""
    if labels & {RANK, GPU, UUID, LOCAL_RANK}:
        return size.ranks
    if NODE in labels:
        return size.nodes
    return size.jobs if JOB_ID in labels else 1


def _num_values(label: Label, selector: Selector) -> float:
    matched = {name: (operator, value) for name, operator, value in selector.matchers}
    operator, value = matched.get(label.name, ("", ""))
    if operator == "=":
        return 1
    if operator == "=~":
        return value.count("|") + 1
    if label.values:
        return len(label.values)
    if label in {CLUSTER, NODE, JOB_ID, RANK, GPU, UUID, LOCAL_RANK}:
        return 1
    if label == LINK:
        return _LINKS
    per_node = {"device": _DEVICES, "job_class": _CLASSES, "queue": _CLASSES}
    return per_node.get(label.name, 1)


TESTS = "lockstep*.tests.yaml"
_PROMTOOLS = ("promtool", "promtool3")
_PACKAGES = {"promtool": "prometheus", "amtool": "prometheus-alertmanager"}
_LINT = ("check", "rules", "--lint=all", "--lint-fatal")
_VERSION = re.compile(r"(promtool|amtool), version ([0-9.]+)")
_PARTS_PER_CORE = 4
_LIMIT_SECONDS = 900


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check came to; ``output`` is the tool's own text, empty where it passed."""

    title: str
    output: str

    @property
    def passed(self) -> bool:
        """Whether the tool found nothing."""
        return not self.output


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check: its title, and how many runs of a tool it is."""

    title: str
    commands: tuple[tuple[str, ...], ...]


def find_tools(promtools: tuple[Path, ...]) -> tuple[dict[str, str], str]:
    """Each promtool by its title, ``promtool 2.42.0``, and the path of amtool; or UsageError."""
    paths = [path for name in _PROMTOOLS if (path := shutil.which(name))]
    paths += [str(path) for path in promtools]
    amtool = shutil.which("amtool")
    for name, is_missing in (("promtool", not paths), ("amtool", amtool is None)):
        if is_missing:
            raise click.UsageError(
                f"{name} is not on PATH; install it (Debian package {_PACKAGES[name]})"
            )
    assert amtool is not None
    return {_version(path): path for path in paths}, amtool


def _version(path: str) -> str:
    """Such as ``promtool 2.42.0``, of ``promtool, version 2.42.0+ds (branch: ...)``."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise click.UsageError(f"--promtool {path}: {error.strerror}; name a promtool") from error
    matched = _VERSION.match(done.stdout + done.stderr)
    if not matched:
        raise click.UsageError(f"--promtool {path}: does not answer as promtool; name one")
    return f"{matched[1]} {matched[2]}"


def lint(folder: Path) -> Finding:
    """What is wrong with the rules beyond promtool's own lint."""
    return Finding(title="lint of the rules", output="\n".join(findings(_rule_files(folder))))


def static_checks(folder: Path, promtools: dict[str, str], amtool: str) -> list[Check]:
    """Lint of the rules by each promtool, and the configuration of Alertmanager."""
    rules = tuple(map(str, _rule_files(folder)))
    checks = [
        Check(title=f"{title}: check rules --lint=all", commands=((path, *_LINT, *rules),))
        for title, path in promtools.items()
    ]
    config = str(folder / ROUTES_FILE)
    return [
        *checks,
        Check(
            title=f"{_version(amtool)}: check-config", commands=((amtool, "check-config", config),)
        ),
    ]


def route_check(folder: Path, amtool: str) -> Check:
    """Every alert of the rules reaches the receiver of its severity."""
    severities = [
        (rule["alert"], severity_of(rule))
        for rules_file in _rule_files(folder)
        for group in _load(rules_file)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    config = folder / ROUTES_FILE
    receivers = frozenset(each["name"] for each in _load(config)["receivers"])
    test = (amtool, "config", "routes", "test", f"--config.file={config}")
    cases = route_cases(severities, receivers)
    commands = [(*test, f"--verify.receivers={case.receiver}", *case.labels) for case in cases]
    return Check(title=f"{_version(amtool)}: {len(cases)} routes", commands=tuple(commands))


def _rule_files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob(RULES_FILES))
    if not paths:
        raise click.UsageError(f"--dir {folder}: has no {RULES_FILES}; generate it")
    return paths


def _load(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        document = None
    if not isinstance(document, dict):
        raise click.UsageError(f"--dir {path.parent}: {path.name} cannot be read; generate it anew")
    return document


def rule_tests(folder: Path, promtools: dict[str, str], scratch: Path) -> Iterator[Check]:
    """The rule tests of the folder in parts, so that cores share them and progress shows."""
    for rules_file in _rule_files(folder):
        shutil.copy(rules_file, scratch)
    for tests_file in sorted(folder.glob(TESTS)):
        document = _load(tests_file)
        tests = document["tests"]
        num_parts = min(len(tests), _PARTS_PER_CORE * (os.cpu_count() or 1))
        parts = [scratch / f"{index}-{tests_file.name}" for index in range(num_parts)]
        for index, part in enumerate(parts):
            part.write_text(to_yaml({**document, "tests": tests[index::num_parts]}), "utf-8")
        for title, path in promtools.items():
            yield Check(
                title=f"{title}: {len(tests)} tests of {tests_file.name}",
                commands=tuple((path, "test", "rules", str(part)) for part in parts),
            )


def _output(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)}: no answer in {_LIMIT_SECONDS} s"
    if done.returncode == 0:
        return ""
    return f"$ {' '.join(command)}\n{(done.stdout + done.stderr).strip()}"


def run_checks(
    checks: Iterable[Check], progress: Callable[[str, int, int], None]
) -> Iterator[Finding]:
    """The finding of each check, in order; ``progress`` gets its title, the runs done and all."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for check in checks:
            outputs = []
            for output in pool.map(_output, check.commands):
                outputs.append(output)
                progress(check.title, len(outputs), len(check.commands))
            yield Finding(title=check.title, output="\n".join(filter(None, outputs)))


def every_check(folder: Path, promtools: dict[str, str], amtool: str) -> Iterator[Check]:
    """All of them, the quick ones first; parts of test files live until the last is done."""
    yield from static_checks(folder, promtools, amtool)
    yield route_check(folder, amtool)
    with tempfile.TemporaryDirectory() as scratch:
        yield from rule_tests(folder, promtools, Path(scratch))


_FOLDER = option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=GENERATED,
    help="Folder with the generated files.",
)
_PROMTOOL = click.option(
    "--promtool",
    "promtools",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    help="A promtool to use besides promtool and promtool3 on PATH; repeatable.",
)


@click.command()
@_FOLDER
@_PROMTOOL
@click.option(
    "--nodes",
    type=click.IntRange(1, 1_000_000),
    help="Refuse what one Prometheus cannot evaluate of so many nodes of 8 GPUs.",
)
@click.pass_context
def check(ctx: click.Context, folder: Path, promtools: tuple[Path, ...], nodes: int | None) -> None:
    """Lint the generated rules and check Alertmanager's configuration; exit 1 on a finding."""
    capacity = [Finding(title=f"{nodes} nodes", output=refusal(nodes))] if nodes else []
    ctx.exit(_report(folder, static_checks(folder, *find_tools(promtools)), capacity))


@click.command()
@_FOLDER
@_PROMTOOL
@click.pass_context
def test(ctx: click.Context, folder: Path, promtools: tuple[Path, ...]) -> None:
    """Run the rule tests of the folder, the lint, and a test of every route; exit 1 on a finding.

    Rule tests are written in a checkout, and take about a second for each alert.
    """
    if not any(folder.glob(TESTS)):
        click.echo(
            f"--dir {folder}: has no {TESTS}, so no rule is tested on series; in a "
            f"checkout python -m tests.alerts.cases.write --out {folder} writes them, by the same "
            "--spec",
            err=True,
        )
    ctx.exit(_report(folder, every_check(folder, *find_tools(promtools))))


def _report(folder: Path, checks: Iterable[Check], found: Iterable[Finding] = ()) -> int:
    failed = False
    console = Console(stderr=True)
    begin = time.monotonic()
    with console.status("") as status:

        def progress(title: str, num_done: int, num_runs: int) -> None:
            status.update(f"{title}: {num_done} of {num_runs} runs")

        for finding in chain([lint(folder)], found, run_checks(checks, progress)):
            seconds = time.monotonic() - begin
            click.echo(
                f"{'passed' if finding.passed else 'FAILED'}  {finding.title}  {seconds:.1f}s"
            )
            if not finding.passed:
                click.echo(finding.output)
            failed = failed or not finding.passed
            begin = time.monotonic()
    return 1 if failed else 0
