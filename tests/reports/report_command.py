"""``lockstep report`` in this process, and in one of bounded memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from servers import captured

from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.command import report
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.recording.recording import Recording


def run_report(*arguments: object) -> Result:
    return CliRunner().invoke(report, list(map(str, arguments)))


def report_json(*arguments: object) -> dict[str, Any]:
    result = run_report(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    payload: dict[str, Any] = json.loads(result.stdout)
    return payload


def reported(path: Path) -> StepAnalysis:
    """What ``report`` finds in a recording of steps, before it is rendered."""
    read = read_source(str(path), ReadOptions())
    assert isinstance(read, Recording)
    return analyse(read)


def run_in_bounded_memory(
    path: Path, max_bytes: int, timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({max_bytes}, {max_bytes}));"
        "from lockstep_reports.command import report; report()"
    )
    return captured([sys.executable, "-c", code, str(path), "--json", "-"], timeout=timeout_seconds)
