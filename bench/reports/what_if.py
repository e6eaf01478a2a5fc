"""Times the what-if analysis, process start to JSON: ``python bench/reports/what_if.py [--scale]``.

The published trace, a synthetic trace of 117,000 rows, and with ``--scale`` 16,384 ranks x 20
steps with one slow node. Each run is a process of its own; medians and peak memory are printed.
"""

import json
import os
import platform
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
MAKER = ROOT / "tests" / "reports" / "synthetic_trace.py"
SyntheticTrace = runpy.run_path(str(MAKER))["SyntheticTrace"]
PUBLISHED = ROOT / "tests" / "fixtures" / "straggler-bytedance" / "trace-ST.parquet"
MADE = SyntheticTrace(replicas=8, stages=8, batches=10, num_steps=31, slow={21: 1.5})
SCALE = SyntheticTrace(
    replicas=4096,
    stages=4,
    batches=4,
    num_steps=20,
    slow=dict.fromkeys(range(8192, 8200), 1.4),
    ranks_on_node=8,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One process: wall seconds, processor seconds, peak memory in MiB."""

    wall_seconds: float
    cpu_seconds: float
    peak_mib: float
    verdict: str


def _run(command: list[str]) -> Run:
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        if status:
            raise SystemExit(f"{command} failed with {status}")
        out.seek(0)
        verdict = json.load(out)["verdict"] if command[1] == "report" else {}
    verdict_text = f"{verdict.get('kind')} {verdict.get('group') or verdict.get('ranks')}"
    return Run(
        wall_seconds=wall,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        verdict=verdict_text if verdict else "",
    )


def _print_row(name: str, runs: list[Run]) -> None:
    wall = [run.wall_seconds for run in runs]
    print(
        f"| {name} | {len(runs)} | {statistics.median(wall):.3f} | {min(wall):.3f} | "
        f"{max(wall):.3f} | {statistics.median(run.cpu_seconds for run in runs):.3f} | "
        f"{max(run.peak_mib for run in runs):,.0f} | {runs[0].verdict} |",
        flush=True,
    )


def _report(trace: Path, *more: str) -> list[str]:
    return [
        str(Path(sys.executable).with_name("lockstep")),
        "report",
        str(trace),
        "--json",
        "-",
        *more,
    ]


@click.command()
@click.option("--runs", default=11, help="Processes for each line.")
@click.option("--scale", is_flag=True, help="Also 16,384 ranks x 20 steps, once.")
def main(runs: int, scale: bool) -> None:
    """Prints a table in Markdown."""
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    print(f"load at start {os.getloadavg()[0]:.1f}\n")
    print("| what | runs | median s | lowest s | highest s | median CPU s | peak MiB | verdict |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for module in ("click", "numpy", "pyarrow.parquet", "lockstep_reports.command"):
        command = [sys.executable, "-c", f"import {module}"]
        _print_row(f"import {module}", [_run(command) for _ in range(runs)])
    _print_row("published trace, 6,784 rows", [_run(_report(PUBLISHED)) for _ in range(runs)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "synthetic.parquet"
        table = MADE.table()
        pq.write_table(table, path)
        _print_row(
            f"synthetic trace, {table.num_rows:,} rows", [_run(_report(path)) for _ in range(runs)]
        )
        if scale:
            table = SCALE.table()
            rows = table.num_rows
            pq.write_table(table, path)
            del table
            page = Path(folder) / "page.html"
            _print_row(
                f"16,384 ranks x 20 steps, {rows:,} rows, with HTML",
                [_run(_report(path, "--html", str(page)))],
            )
            print(
                f"\nHTML page: {page.stat().st_size / 1e6:.1f} MB; trace as Parquet: "
                f"{path.stat().st_size / 1e6:.0f} MB"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of this process, which wrote the traces: {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
