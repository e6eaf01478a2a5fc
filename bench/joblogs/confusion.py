"""Judges made logs and prints where each ending went: `python bench/joblogs/confusion.py 1000`."""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median

from made_endings import ENDINGS, LAUNCH_ERRORS
from made_logs import MadeLog, Truth, begin, train

from lockstep_outcomes.joblogs.outcome import Incident, judge_log
from lockstep_outcomes.joblogs.read import read_log

_TOLERANCE = 0.01


def made_log(seed: int) -> tuple[str, MadeLog]:
    """The ending's name and the log of a seed."""
    log = begin(seed)
    row = seed % (len(ENDINGS) + 1)
    if row == len(ENDINGS):
        log.lines.append(log.draw.choice(LAUNCH_ERRORS))
        log.truth = Truth("failed", "launch_failure", "workload")
        return "launch_failure", log
    log.mllog("run_start")
    train(log, 1, 60)
    ENDINGS[row](log)
    return ENDINGS[row].__name__, log


def errors_of(log: MadeLog, incident: Incident, seconds: list[float]) -> list[str]:
    """What is wrong with a verdict; false names first."""
    truth, wrong = log.truth, []
    if set(incident.ranks) - set(truth.ranks):
        wrong.append("names")
    if incident.outcome != truth.outcome:
        wrong.append("outcome")
    if incident.cause != truth.cause:
        wrong.append("cause")
    if incident.blame != truth.blame and truth.cause not in {"launch_failure", "gpu_oom"}:
        wrong.append("blame")
    if truth.median_seconds is not None:
        found = median(seconds) if seconds else 0.0
        if abs(found - truth.median_seconds) > _TOLERANCE * truth.median_seconds:
            wrong.append("steps")
    after = incident.seconds_after_last_progress
    if truth.after_seconds is not None and (after is None or abs(after - truth.after_seconds) > 1):
        wrong.append("clock")
    spans = (incident.run_seconds, incident.wall_seconds)
    if None not in spans and (spans[1] or 0) + 1 < (spans[0] or 0):
        wrong.append("impossible")
    return wrong


def confusion(first_seed: int, num_seeds: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Counts by ending and error, and a sentence for each wrong verdict."""
    table: Counter[tuple[str, str]] = Counter()
    sentences = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first_seed, first_seed + num_seeds):
            ending, written = made_log(seed)
            path = Path(folder) / "made.log"
            path.write_text("\n".join(written.lines) + "\n")
            log = read_log(path)
            incident = judge_log(log)
            wrong = errors_of(written, incident, list(log.step_seconds))
            for name in wrong or ["right"]:
                table[ending, name] += 1
            if wrong:
                found = (incident.outcome, incident.cause, incident.blame, incident.ranks)
                sentences.append(
                    f"{seed} {ending} {written.framework} {wrong}: {found}, {written.truth}"
                )
    return table, sentences


def main() -> None:
    """Prints the table, and the first wrong verdicts."""
    num_seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    table, sentences = confusion(1, num_seeds)
    columns = ("right", "names", "outcome", "cause", "blame", "steps", "clock", "impossible")
    print(f"{'ending':<26}" + "".join(f"{column:>11}" for column in columns))
    for ending in dict.fromkeys(ending for ending, _ in table):
        print(f"{ending:<26}" + "".join(f"{table[ending, column]:>11}" for column in columns))
    print("\n".join(sentences[:20]))


if __name__ == "__main__":
    main()
