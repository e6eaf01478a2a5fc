"""Compares the verdicts of reports with those of other tools on the same recordings.

For each recording: whom each tool names, who was slow in truth, and how long a whole process takes.
Other tools run from a folder of their own; one that cannot be installed gets a sentence.
"""

import os
import platform
import runpy
import sys
import tempfile
from pathlib import Path

import click
import pyarrow.parquet as pq
from processes import figures, missing_reason, ratio, run_in_turn, run_lockstep
from recordings import Case, cases

_ROOT = Path(__file__).resolve().parents[2]
_PUBLISHED = _ROOT / "tests" / "fixtures" / "straggler-bytedance" / "trace-ST.parquet"
_SYNTHETIC_TRACE = _ROOT / "tests" / "reports" / "synthetic_trace.py"
_HTA = "HTA 0.5.0"
# Measured by others on another machine and quoted from the project's reference; not run here.
_QUOTED_SECONDS = {
    "published": "1.03",
    "synthetic": "1.6 to 1.8 (traces of 107,000 to 117,000 rows)",
}


def _print_header(*columns: str) -> None:
    print("| " + " | ".join(columns) + " |")
    print("| " + " | ".join("---" for _ in columns) + " |")


def _print_row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def _show_progress(text: str) -> None:
    # Standard output holds the tables alone, for a file of evidence.
    print(f"... {text}", file=sys.stderr, flush=True)


def compare_on_profiles(data: Path, peers: Path, num_pairs: int) -> None:
    """Prints whom Lockstep and HTA name from profiler traces, and the seconds of each."""
    reason = missing_reason("hta.trace_analysis", peers)
    print(f"\n## Profiler traces, {num_pairs} pairs of processes in turn\n")
    print("Seconds: median on the clock / least / median of processors. HTA always names two.\n")
    columns = ("recording", "true", "Lockstep says", f"{_HTA} says", "Lockstep s", f"{_HTA} s")
    _print_header(*columns, "HTA to Lockstep, clock / processors")
    with cases(data) as recordings:
        for number, case in enumerate(recordings, start=1):
            _show_progress(f"profile {number} of {len(recordings)}: {case.name}")
            if reason is None:
                _compare_on_profile(case, peers, num_pairs)
                continue
            runs = [run_lockstep(case.folder) for _ in range(num_pairs)]
            answers = case.judge(runs[0].answer), f"cannot be run here: {reason}"
            _print_row(case.name, case.truth, *answers, figures(runs), "", "")


def _compare_on_profile(case: Case, peers: Path, num_pairs: int) -> None:
    pairs = run_in_turn(case.folder, peers, num_pairs)
    ours, theirs = [pair.ours for pair in pairs], [pair.theirs for pair in pairs]
    answers = case.judge(ours[0].answer), case.judge(theirs[0].answer)
    _print_row(case.name, case.truth, *answers, figures(ours), figures(theirs), ratio(pairs))


def measure_what_if(num_runs: int) -> None:
    """Prints our time for operation traces, and the published code's as others measured it."""
    print("\n## Operation traces, process start to JSON\n")
    _print_header("trace", "Lockstep says", "Lockstep s", "published code s, quoted (not run here)")
    synthetic = runpy.run_path(str(_SYNTHETIC_TRACE))["SyntheticTrace"](
        replicas=8, stages=8, batches=10, num_steps=31, slow={21: 1.5}
    )
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        path = Path(folder) / "synthetic.parquet"
        pq.write_table(synthetic.table(), path)
        for name, trace in {"published": _PUBLISHED, "synthetic": path}.items():
            _show_progress(f"operation trace: {name}")
            runs = [run_lockstep(trace) for _ in range(num_runs)]
            title = f"{name}, {pq.read_metadata(trace).num_rows:,} rows"
            _print_row(title, runs[0].answer, figures(runs), _QUOTED_SECONDS[name])


@click.command()
@click.option(
    "--pairs", default=5, show_default=True, help="Number of pairs of processes per recording."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=_ROOT.parent / "shared" / "data",
    show_default="shared/data next to the checkout",
    help="Folder of real recordings; where it lacks one, that of the tests is used.",
)
@click.option(
    "--peers",
    type=click.Path(path_type=Path, file_okay=False),
    default=_ROOT / ".venv" / "peers-reports",
    show_default=".venv/peers-reports",
    help="Folder with the other tools; `make bench-reports` fills it.",
)
def main(pairs: int, data: Path, peers: Path) -> None:
    """Print whom each tool names, and how long it takes."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"load at start {os.getloadavg()[0]:.1f}")  # fmt: skip
    compare_on_profiles(data, peers, pairs)
    measure_what_if(pairs)


if __name__ == "__main__":
    main()
