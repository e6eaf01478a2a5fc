"""Judges simulated hangs and prints whom the reports name: `python bench/hangs/hangs.py 1000`."""

import sys
from collections import Counter

from dumps import dumps_of
from simulation import FAULTS, Simulation

from lockstep_reports.readers.flight_recorder import RankDump, join_dumps
from lockstep_reports.verdict.hang import judge_hang
from lockstep_reports.verdict.verdict import Verdict

COLUMNS = ("right", "unknown", "deadlock", "nobody", "false")


def verdict_of(simulation: Simulation, *, loses_dump: bool = False) -> Verdict:
    """The verdict on the dumps of all ranks; of all but one with ``loses_dump``."""
    dumps = dumps_of(simulation)
    if loses_dump:
        del dumps[simulation.draw.choice(sorted(dumps))]
    return judge_hang(
        join_dumps(
            {
                rank: RankDump(
                    rank=rank, config=dump["pg_config"], status=dump["pg_status"],
                    entries=dump["entries"],
                )
                for rank, dump in dumps.items()
            }
        )
    )  # fmt: skip


def column_of(simulation: Simulation, verdict: Verdict) -> str:
    """Where a verdict belongs in the table; false is any rank that is not at fault."""
    if set(verdict.ranks) - set(simulation.truth):
        return "false"
    if verdict.ranks:
        return "right"
    if verdict.cause == "deadlock":
        return "deadlock" if simulation.hangs else "false"
    return verdict.kind


def confusion(first_seed: int, num_seeds: int, *, loses_dump: bool) -> Counter[tuple[str, str]]:
    """Counts by fault and column; a swap that hangs nothing, as others, counts as no fault."""
    table: Counter[tuple[str, str]] = Counter()
    for seed in range(first_seed, first_seed + num_seeds):
        fault = FAULTS[seed % len(FAULTS)]
        simulation = Simulation(seed, fault)
        verdict = verdict_of(simulation, loses_dump=loses_dump)
        row = fault if simulation.hangs else "none"
        table[row, column_of(simulation, verdict)] += 1
    return table


def main() -> None:
    """Prints the tables with the dumps of all ranks, and of all but one."""
    num_seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first_seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1  # noqa: PLR2004  # two arguments
    for loses_dump in (False, True):
        table = confusion(first_seed, num_seeds, loses_dump=loses_dump)
        print(f"\n{num_seeds} jobs, dumps of all ranks{' but one' if loses_dump else ''}")
        print(f"{'fault':<8}" + "".join(f"{column:>10}" for column in COLUMNS))
        for fault in FAULTS:
            print(f"{fault:<8}" + "".join(f"{table[fault, column]:>10}" for column in COLUMNS))


if __name__ == "__main__":
    main()
