"""Reports beside other tools' on the same recordings, in one run: ``make bench-reports``.

Whom does each accuse, beside what is true, and how long does it take as a whole process? Other
tools run from a folder of their own; one that cannot be installed gets a sentence.
"""

import os
import platform
import runpy
import tempfile
from pathlib import Path

import click
import pyarrow.parquet as pq
from both import ORIGINS, run
from processes import figures, in_turn, lockstep, missing, ratio
from recordings import cases

_ROOT = Path(__file__).resolve().parents[2]
_PUBLISHED = _ROOT / "tests" / "fixtures" / "straggler-bytedance" / "trace-ST.parquet"
_MAKER = _ROOT / "tests" / "reports" / "synthetic_trace.py"
_HTA, _TRACEML = "HTA 0.5.0", "TraceML 0.5.0"
# Measured by others on another machine and told in the project's reference; nothing of it ran here.
_TOLD = {"published": "1.03", "made": "1.6 to 1.8 (traces of 107,000 to 117,000 rows)"}


def _table(*head: str) -> None:
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join("---" for _ in head) + " |")


def _row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def profiler_traces(data: Path, peers: Path, pairs: int) -> None:
    """Prints whom Lockstep and HTA accuse from profiler traces, and what each took."""
    why = missing("hta.trace_analysis", peers)
    print(f"\n## Profiler traces, {pairs} pairs of processes in turn\n")
    print("Seconds: median on the clock / least / median of processors. HTA always names two.\n")
    columns = ("recording", "true", "Lockstep says", f"{_HTA} says", "Lockstep s", f"{_HTA} s")
    _table(*columns, "HTA to Lockstep, clock / processors")
    with cases(data) as recordings:
        for case in recordings:
            if why is not None:
                ours = [lockstep(case.folder) for _ in range(pairs)]
                told = f"cannot be run here: {why}"
                _row(case.name, case.truth, case.judge(ours[0].said), told, figures(ours), "", "")
                continue
            rows = in_turn(case.folder, peers, pairs)
            ours, theirs = [one.ours for one in rows], [one.theirs for one in rows]
            said = case.judge(ours[0].said), case.judge(theirs[0].said)
            _row(case.name, case.truth, *said, figures(ours), figures(theirs), ratio(rows))


def runs_of_both(peers: Path) -> None:
    """Prints whom Lockstep and TraceML name in runs that both recorded."""
    print("\n## Runs of four gloo ranks recorded by both, 20 ms lost by rank 2 in each step\n")
    why = missing("traceml_ai.api", peers)
    if why is not None:
        print(f"{_TRACEML} cannot be run here: {why}")
        return
    print("TraceML makes its summary while the run ends, so it has no time of its own.\n")
    _table("true", "Lockstep says", f"{_TRACEML} says", "Lockstep s")
    for origin in ORIGINS:
        told = run(origin, peers)
        _row(told.truth, told.ours.said, told.traceml, figures([told.ours]))


def what_if(runs: int) -> None:
    """Prints our time for operation traces beside the published code's, as others measured it."""
    print("\n## Operation traces, process start to JSON\n")
    _table("trace", "Lockstep says", "Lockstep s", "published code s, as told (not measured here)")
    made = runpy.run_path(str(_MAKER))["SyntheticTrace"](
        replicas=8, stages=8, batches=10, num_steps=31, slow={21: 1.5}
    )
    with tempfile.TemporaryDirectory() as folder:
        path, table = Path(folder) / "made.parquet", made.table()
        pq.write_table(table, path)
        named = {"published": _PUBLISHED, "made": path}
        for name, trace in named.items():
            ended = [lockstep(trace) for _ in range(runs)]
            rows = f"{name}, {pq.read_metadata(trace).num_rows:,} rows"
            _row(rows, ended[0].said, figures(ended), _TOLD[name])


@click.command()
@click.option("--pairs", default=5, show_default=True, help="Pairs of processes a recording.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=_ROOT.parent / "shared" / "data",
    show_default="shared/data beside the checkout",
    help="Folder of real recordings; those among the tests are taken where it lacks them.",
)
@click.option(
    "--peers",
    type=click.Path(path_type=Path, file_okay=False),
    default=_ROOT / ".venv" / "peers-reports",
    show_default=".venv/peers-reports",
    help="Folder that holds the other tools; `make bench-reports` fills it.",
)
def main(pairs: int, data: Path, peers: Path) -> None:
    """Print whom each tool accuses, and how long it takes."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"load at start {os.getloadavg()[0]:.1f}")  # fmt: skip
    profiler_traces(data, peers, pairs)
    runs_of_both(peers)
    what_if(pairs)


if __name__ == "__main__":
    main()
