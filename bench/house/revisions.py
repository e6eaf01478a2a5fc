"""Two checkouts in turns, in one run: what watching, the agent and a report cost in each.

``python bench/house/revisions.py BEFORE AFTER [--rounds N]``: both run in the environment of the
Python that runs this file, each with its own folders first on the path and its own compiled
recorder.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_COMPONENTS = (
    "catalogue",
    "records",
    "cli",
    "instrumentation",
    "trainer",
    "agent",
    "ledger",
    "alerts",
    "dashboards",
    "reports",
)
_TMPFS = "/dev/shm"  # noqa: S108  # a page is refused elsewhere
_ROUND_PAIRS = 20
_SIMULATED = ("--ranks", "256", "--steps", "1000", "--rows", "1024", "--speed", "fast")
_FAULT = "slow-backward:node=node-0011,step=400,until=700,delay=250ms"
_FIGURE = re.compile(r"^(processor|scrape, median|resident, end)\s.*?([\d.]+) ?(?:%|ms|MiB)\s*$")


class Checkout:
    """One revision, as commands of its own run.

    Args:
        root: its folder; its recorder in C is compiled there if it is not yet.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._compile()

    def run(self, *arguments: str, **environment: str) -> str:
        """What a Python process of this revision prints."""
        folders = [str(self.root / name) for name in _COMPONENTS]
        path = os.pathsep.join([environment.pop("PYTHONPATH", ""), *folders]).strip(os.pathsep)
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            cwd=self.root,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=1800,
        ).stdout

    def bench(self, name: str) -> Path:
        """A script below ``bench``, in whichever folder the revision keeps it."""
        return next((self.root / "bench").rglob(name))

    def _compile(self) -> None:
        library = self.root / "instrumentation" / "lockstep"
        if any(library.glob("_native*.so")):
            return
        spec = importlib.util.spec_from_file_location("build", self.root / "build_native.py")
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        target = library / f"_native{importlib.machinery.EXTENSION_SUFFIXES[0]}"
        problem = build.compile_to(target, self.root / "instrumentation" / "native")
        assert not problem, problem


def measure_overhead(checkout: Checkout) -> Iterator[tuple[str, float]]:
    """Microseconds that watching adds, by loop: the median of this round's pairs."""
    script = checkout.bench("competitor_lockstep.py")
    with tempfile.TemporaryDirectory(
        prefix="lockstep-bench-", dir="/dev/shm"
    ) as folder:  # pages need a tmpfs
        result = Path(folder) / "pairs.json"
        checkout.run(
            str(script),
            PYTHONPATH=f"{script.parent}{os.pathsep}{script.parents[1]}",
            BENCH_PAIRS=str(result),
            BENCH_ROOT=folder,
            BENCH_ROUND_PAIRS=str(_ROUND_PAIRS),
        )
        for loop, pairs in json.loads(result.read_text()).items():
            yield f"watching {loop}, us", statistics.median(on - off for off, on in pairs)


def measure_agent(checkout: Checkout) -> Iterator[tuple[str, float]]:
    """The agent's processor time, scrape and memory on the fake node of its revision."""
    script = checkout.bench("agent_cost.py")
    printed = checkout.run(
        str(script), "--no-peers", "--duration", "30s", "--scrapes", "2000",
        PYTHONPATH=f"{script.parent}{os.pathsep}{script.parents[1]}",
    )  # fmt: skip
    for line in printed.splitlines():
        if found := _FIGURE.match(line):
            yield f"agent's {found[1]}", float(found[2])


def measure_report(checkout: Checkout, recording: Path) -> Iterator[tuple[str, float]]:
    """Seconds of a report of the same recording, start of the process to its JSON."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    checkout.run("-m", "lockstep_cli.main", "report", str(recording), "--json", "-")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield "report, seconds", time.perf_counter() - began
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    yield "report, processor seconds", used


def main() -> None:
    """Prints the median of each figure before and after, and the median of the ratios by round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs=2, type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    before, after = (Checkout(root) for root in options.checkouts)
    figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=_TMPFS) as folder:
        before.run(
            "-m", "lockstep_cli.main", "simulate", "--dir", folder, "--job-id", "pair",
            *_SIMULATED, "--fault", _FAULT,
        )  # fmt: skip
        recording = Path(folder) / "jobs" / "pair"
        for number in range(options.rounds):
            order = (before, after) if number % 2 else (after, before)
            taken = {
                checkout: dict(
                    [
                        *measure_overhead(checkout),
                        *measure_agent(checkout),
                        *measure_report(checkout, recording),
                    ]
                )
                for checkout in order
            }
            for name, value in taken[after].items():
                figures[name].append((taken[before][name], value))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(f"{'':<28}{'before':>10}{'after':>10}{'ratio':>8}  (lowest to highest)")
    for name, pairs in figures.items():
        ratios = sorted(new / old for old, new in pairs)
        old, new = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(
            f"{name:<28}{old:>10.3f}{new:>10.3f}{statistics.median(ratios):>8.3f}"
            f"  ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
