"""Makes the endings of a job by the trainer and prints what Lockstep says: `make bench-endings`."""

import shutil
import sys
import tempfile
from pathlib import Path

from run import Ended, run
from scenarios import SCENARIOS, Scenario

RANKS = 3


def errors_of(scenario: Scenario, ended: Ended) -> list[str]:
    """Fields of the event in which the classification is wrong; false accusations by the log."""
    fields = ended.fields
    named = set(fields.get("culprit_ranks") or ())
    expected = {
        "outcome": fields.get("outcome") == scenario.outcome,
        "cause": fields.get("cause") in scenario.causes,
        "class": fields.get("failure_class") == scenario.failure_class,
        "culprit": named == set(scenario.culprits),
        "log's ranks": set(ended.incident.ranks) <= set(scenario.culprits),
    }
    return [name for name, is_right in expected.items() if not is_right]


def main() -> None:
    """Prints a row for each ending; with arguments only for those whose names hold one of them."""
    chosen = [
        s for s in SCENARIOS if not sys.argv[1:] or any(part in s.name for part in sys.argv[1:])
    ]
    num_wrong = 0
    columns = ("ending", "first line", "outcome", "cause", "class", "culprit", "s lost",
               "by the log alone", "wrong")  # fmt: skip
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)
    for scenario in chosen:
        top = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="endings-"))
        try:
            ended = run(scenario, top / "job", RANKS)
        finally:
            shutil.rmtree(top, ignore_errors=True)
        wrong, fields, incident = errors_of(scenario, ended), ended.fields, ended.incident
        num_wrong += bool(wrong)
        ranks = ", ".join(map(str, fields.get("culprit_ranks") or ())) or "none"
        lost = "" if ended.lost_seconds is None else f"{ended.lost_seconds:.1f}"
        by_log = f"{incident.outcome}, {incident.cause}, {incident.blame} {list(incident.ranks)}"
        event = [fields.get(name) or "" for name in ("outcome", "cause", "failure_class")]
        cells = (scenario.name, ended.first_line, *event, ranks, lost, by_log, ", ".join(wrong))
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    print(f"{len(chosen) - num_wrong} of {len(chosen)} are right")


if __name__ == "__main__":
    main()
