"""Checks of generated files by promtool and amtool, and the commands that run them."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console

from lockstep_alerts.areas import RULES_FILES
from lockstep_alerts.checks.rule_lint import findings
from lockstep_alerts.output import GENERATED, ROUTES_FILE, severity_of, to_yaml
from lockstep_alerts.routing.tree import route_cases

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
    """Each promtool by its title, ``promtool 2.42.0``, and the path of amtool.

    Raises:
        click.UsageError: a tool is missing.
    """
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


_FOLDER = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=GENERATED,
    show_default=True,
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
@click.pass_context
def check(ctx: click.Context, folder: Path, promtools: tuple[Path, ...]) -> None:
    """Lint the generated rules and check Alertmanager's configuration; exit 1 on a finding."""
    ctx.exit(_report(folder, static_checks(folder, *find_tools(promtools))))


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


def _report(folder: Path, checks: Iterable[Check]) -> int:
    """Prints a line for each check; the exit status."""
    failed = False
    console = Console(stderr=True)
    begin = time.monotonic()
    with console.status("") as status:

        def progress(title: str, num_done: int, num_runs: int) -> None:
            status.update(f"{title}: {num_done} of {num_runs} runs")

        for finding in chain([lint(folder)], run_checks(checks, progress)):
            seconds = time.monotonic() - begin
            click.echo(
                f"{'passed' if finding.passed else 'FAILED'}  {finding.title}  {seconds:.1f}s"
            )
            if not finding.passed:
                click.echo(finding.output)
            failed = failed or not finding.passed
            begin = time.monotonic()
    return 1 if failed else 0
