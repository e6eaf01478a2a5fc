"""Makes the endings of a job by the trainer and prints what Lockstep says: `make bench-endings`."""

import argparse
import platform
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run import Ended, run
from scenarios import SCENARIOS, Scenario
from watching import alerts_by_job, watched

RANKS = 3
_ALIKE = frozenset({"slow", "nobody", "unknown"})
_STRAGGLERS = ("TrainStraggler",)


def errors_of(scenario: Scenario, ended: Ended, alerts: set[str]) -> list[str]:
    """Names of what is wrong: fields of the event, words of the first line, alerts, top."""
    fields = ended.fields
    named = set(fields.get("cause_ranks") or ())
    severity = ended.payload.get("severity")
    is_calm = scenario.severity == "nobody"
    has_page = any(name.startswith(_STRAGGLERS) for name in alerts)
    expected = {
        "outcome": fields.get("outcome") == scenario.outcome,
        "cause": fields.get("cause") in scenario.causes,
        "class": fields.get("failure_class") == scenario.failure_class,
        "cause ranks": named == set(scenario.cause_ranks),
        "log's ranks": set(ended.incident.ranks) <= set(scenario.cause_ranks),
        "severity": severity in _ALIKE if is_calm else severity == scenario.severity,
        "first line": all(words in ended.first_line for words in scenario.says),
        "launcher": is_calm or scenario.severity in {"not_finite", "hung"}
        or all(words in ended.launcher_line for words in scenario.says),
        "top": not any("WITH TOKENS" in text for text in ended.tops.values()),
        "alert": not scenario.alert or scenario.alert in alerts,
        "straggler page": scenario.severity != "hung" or not has_page,
    }  # fmt: skip
    return [name for name, is_right in expected.items() if not is_right]


def main() -> None:
    """Prints a row for each ending; with names only for those that hold one of them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--side-by-side", type=int, default=4, help="Jobs that run side by side.")
    options = parser.parse_args()
    chosen = [
        s for s in SCENARIOS if not options.names or any(part in s.name for part in options.names)
    ]
    work = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="endings-"))
    try:
        with watched(work / "jobs-root", work) as prometheus:
            (work / "jobs-root").mkdir(exist_ok=True)
            with ThreadPoolExecutor(options.side_by_side) as pool:
                ends = list(pool.map(lambda s: run(s, work / "jobs-root", RANKS), chosen))
            alerts = alerts_by_job(prometheus)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{platform.machine()}, {options.side_by_side} jobs of {RANKS} ranks side by side\n")
    num_wrong = 0
    columns = ("ending", "first line of the report", "last line of the launcher", "top, 5 s",
               "top, 60 s", "event", "alerts", "s lost", "by the log alone", "wrong")  # fmt: skip
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)
    for scenario, ended in zip(chosen, ends, strict=True):
        fired = alerts.get(scenario.job_id, set())
        wrong = errors_of(scenario, ended, fired)
        num_wrong += bool(wrong)
        print("| " + " | ".join(_cells(scenario, ended, fired, wrong)) + " |", flush=True)
    print(f"\n{len(chosen) - num_wrong} of {len(chosen)} are right")


def _cells(scenario: Scenario, ended: Ended, alerts: set[str], wrong: list[str]) -> list[str]:
    fields, incident = ended.fields, ended.incident
    ranks = ", ".join(map(str, fields.get("cause_ranks") or ())) or "none"
    event = [fields.get(name) or "-" for name in ("outcome", "cause", "failure_class")]
    lost = "" if ended.lost_seconds is None else f"{ended.lost_seconds:.1f}"
    by_log = f"{incident.outcome}, {incident.cause}, {incident.blame} {list(incident.ranks)}"
    # What the launcher says of the job, without its id and what it says to everyone.
    line = ended.launcher_line.partition(": ")[2].partition(" Exit status")[0]
    cells = [
        scenario.name, ended.first_line, "the same" if line == ended.first_line else line,
        ended.tops.get(5, ""), ended.tops.get(60, ""), f"{', '.join(event)}, rank {ranks}",
        ", ".join(sorted(alerts)), lost, by_log, ", ".join(wrong),
    ]  # fmt: skip
    return [cell.replace("|", "\\|") for cell in cells]


if __name__ == "__main__":
    main()
