"""Made logs of every kind are judged by their truth, whatever lines are in between."""

import gzip
import random
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep_catalogue.vocabulary import OUTCOMES
from lockstep_outcomes.joblogs.kinds import KINDS, Kind, LiteralSearch, kinds_by_literal
from lockstep_outcomes.joblogs.outcome import Incident, judge_log
from lockstep_outcomes.joblogs.prefix import clean, find_stamp, split_prefix
from lockstep_outcomes.joblogs.read import read_log
from lockstep_records.file_access.compressed import blocks

FOLDER = Path(__file__).parents[2] / "fixtures/joblogs"
Truth = dict[str, Any]
TRUTHS: dict[str, Truth] = yaml.load((FOLDER / "truths.yaml").read_text(), yaml.CSafeLoader)
NOISE = (
    "",
    "/usr/lib/python3.10/site-packages/apex/__init__.py:68: DeprecationWarning: old",
    "  warnings.warn(msg)",
    "NCCL version 2.21.5+cuda12.4",
    "wandb: Syncing run quiet-forest-12",
    "gpu-12:25146:25854 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
    "\ufffd\x1b[1mloading\x1b[0m shards 100%|##########|",
)
PARTS = (
    *(literal.encode() for kind in KINDS for literal in kind.literals),
    b"\n", b"\r", b"0: ", b"[rank3]: ", b"\x1f\x8b",
    b"2025-02-30 10:00:00 ", b"[E1332 10:00:01.123456 ",
    b':::MLLOG {"key": "run_stop", "metadata": 3}\n', b"NVRM: Xid (PCI:0): 9999999999, ",
    b':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 1e999}}\n',
    b"  rank      : 3 (local_rank: 0)\n  exitcode  : -11 (pid: 3)\n", b"\xff\xfe\0",
)  # fmt: skip
RANK_SAFE = sorted(name for name, truth in TRUTHS.items() if truth["blame"] == "rank")


def judged(path: Path) -> Incident:
    return judge_log(read_log(path))


def truth_of(incident: Incident) -> Truth:
    """As truths are written: what does not apply is left out."""
    names = ("outcome", "blame", "cause", "failure_class")
    found = {name: getattr(incident, name) for name in names} | {"ranks": [*incident.ranks]}
    found["group"] = incident.group if incident.blame == "group" else None
    return {name: value for name, value in found.items() if value}


def test_every_made_log_has_a_truth_and_every_truth_a_log() -> None:
    assert {path.stem for path in FOLDER.glob("*.log")} == set(TRUTHS)
    assert len(TRUTHS) > 50


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_a_made_log_is_judged_as_it_should_be(name: str) -> None:
    incident = judged(FOLDER / f"{name}.log")
    assert truth_of(incident) == TRUTHS[name]
    assert incident.outcome in OUTCOMES
    assert incident.reason


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_the_first_cause_is_a_line_of_the_log(name: str) -> None:
    path = FOLDER / f"{name}.log"
    lines = path.read_bytes().decode().split("\n")
    incident = judged(path)
    for line in incident.evidence:
        text = line.text.removesuffix("...")
        assert text.strip() in re.sub(r"\x1b\[\d*m", "", lines[line.number - 1])
    assert (incident.first is None) == (incident.cause in {None, "not_converged"})


@pytest.mark.parametrize("name", sorted(TRUTHS))
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000))
def test_other_lines_in_between_change_no_verdict(tmp_path: Path, name: str, seed: int) -> None:
    chosen = random.Random(seed)
    lines = (FOLDER / f"{name}.log").read_text().split("\n")
    spliced = [
        part for line in lines for part in (*chosen.sample(NOISE, chosen.randint(0, 2)), line)
    ]
    path = tmp_path / "spliced.log"
    path.write_text("\n".join(spliced))
    assert truth_of(judged(path)) == TRUTHS[name]


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_other_hosts_and_other_times_change_no_verdict(tmp_path: Path, name: str) -> None:
    text = (FOLDER / f"{name}.log").read_text()
    moved = re.sub(r"2025-03-04(?=[ T_])", "2024-11-28", text).replace("E304 ", "E1128 ")
    moved = (
        moved.replace("0304 ", "1128 ").replace("gn-0417", "rack9-node3").replace("gpu-07", "h1")
    )
    path = tmp_path / "moved.log"
    path.write_text(moved)
    group = {"group": "rack9-node3"} if "group" in TRUTHS[name] else {}
    assert truth_of(judged(path)) == TRUTHS[name] | group


@pytest.mark.parametrize("name", ["gpu_oom_one_rank_others_time_out", "one_rank_behind", "ecc",
                                  "gloo_victims", "mismatched_collectives", "all_time_out",
                                  "gpu_oom_everywhere", "xid_in_kernel_log"])  # fmt: skip
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000))
def test_permuted_ranks_permute_the_verdict(tmp_path: Path, name: str, seed: int) -> None:
    text = (FOLDER / f"{name}.log").read_text()
    ranks = sorted({int(rank) for rank in re.findall(r"\[rank(\d+)\]", text)})
    mixed = random.Random(seed).sample(ranks, len(ranks))
    other = dict(zip(ranks, mixed, strict=True))
    labels = re.compile(r"(\[rank|Rank |rank      : )(\d+)")
    path = tmp_path / "permuted.log"
    path.write_text(labels.sub(lambda m: f"{m[1]}{other.get(int(m[2]), int(m[2]))}", text))
    expected = TRUTHS[name]
    assert judged(path).blame == expected["blame"]
    assert judged(path).ranks == tuple(sorted(other[rank] for rank in expected.get("ranks", ())))


@pytest.mark.parametrize("name", RANK_SAFE)
def test_a_log_cut_off_after_its_first_cause_blames_nobody_else(tmp_path: Path, name: str) -> None:
    complete = judged(FOLDER / f"{name}.log")
    lines = (FOLDER / f"{name}.log").read_text().split("\n")
    assert complete.first is not None
    for num_lines in (complete.first.number, (complete.first.number + len(lines)) // 2):
        path = tmp_path / f"num_lines{num_lines}.log"
        path.write_text("\n".join(lines[:num_lines]))
        short = judged(path)
        assert not set(short.ranks) - set(complete.ranks)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=4000) | st.lists(st.sampled_from(PARTS), max_size=60).map(b"".join))
def test_any_bytes_are_judged_without_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(data)
    assert judged(path).outcome in OUTCOMES


PIECES = (" ", "\x1c", "a", "a1", "1", "1 ", "1:", "(", "(a)", "*", "#", ": ", "\x1b[", "Error ")
DIGITS = "9" * 5000
LINES = (
    f"  rank      : {DIGITS} (local_rank: 0)",
    "  rank      : 999999999 (local_rank: 0)",
    "[rank999999]: Traceback (most recent call last)",
    f"  exitcode  : -{DIGITS} (pid: 1)",
    f"[W] world_size={DIGITS}",
    "world_size=999999999",
    f"srun: error: node-1: tasks {DIGITS}-{DIGITS},²: Exited with exit code 1",
    "srun: error: node-1: tasks 0-999999999: Exited with exit code 1",
    f"NVRM: Xid (PCI:0000:3b:00): {DIGITS}",
    f"process rank {DIGITS} with PID 1 on node a exited on signal {DIGITS}",
    "exiting program after 1.2.3 minutes",
    f"train_runtime: {DIGITS}",
    f"iteration 5/10 | elapsed time per iteration (ms): {DIGITS} | loss: 1",
    "step 5 loss 1 step_time: 1e999",
    f"10%|#| 1/2 [{DIGITS}:{DIGITS}<00:01",
    f"+ srun -n {DIGITS} python train.py",
    f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={DIGITS}, OpType=ALLREDUCE)",
    f"last enqueued NCCL work: {DIGITS}, last completed NCCL work: 1",
    ':::MLLOG {"key": "train_loss", "metadata": {"step": ' + "[" * 900 + "]" * 900 + "}}",
    ':::MLLOG {"key": "tracked_stats", "value": {"step_time": 1e999}, "metadata": {"step": 1e999}}',
    ':::MLLOG {"key": "run_start", "time_ms": ' + DIGITS + "}",
    "2025-99-99 99:99:99 step 1 loss 2",
    "\x1b]0;" + "x" * 20_000,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_line_takes_long_to_match(kind: Kind) -> None:
    for literal in (*kind.literals, *PIECES):
        text = (literal * 4000)[:4000]
        begin = time.thread_time()
        kind.pattern.search(text)
        assert time.thread_time() - begin < 0.1, literal


def test_no_prefix_or_time_takes_long_to_find() -> None:
    for piece in (*PIECES, "step1", "[1]: ", "2020-01-01 00:00:00", "INFO ", "\x1b]"):
        begin = time.thread_time()
        text = clean((piece * 8192)[:8192].encode())
        split_prefix(text)
        find_stamp(text, 2025)
        assert time.thread_time() - begin < 0.1, piece


def test_numbers_of_any_size_end_no_reading(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("\n".join((*LINES, *LINES, "the last line")), encoding="utf-8")
    log = read_log(path)
    judge_log(log)
    assert log.lines == 2 * len(LINES) + 1
    assert log.notes == ()
    assert (log.world_size or 0) <= 1_000_000
    assert all(rank < 1_000_000 for finding in log.findings for rank in finding.ranks)


def test_an_endless_line_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(60):
            file.write(b"step %d loss 1 Error " % number + bytes(range(32, 127)) * 11_000)
    tracemalloc.start()
    read_log(path)
    assert tracemalloc.get_traced_memory()[1] < 80 << 20
    tracemalloc.stop()


def test_a_decompression_bomb_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bomb.log.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(260):
            file.write(bytes(1 << 20))
    with pytest.raises(ValueError, match="expands to more than 500 times its size"):
        list(blocks(path))


pytest.importorskip("ahocorasick_rs", reason="without it there is only one search")
TABLE = kinds_by_literal(KINDS)
AT_ONCE, IN_TURN = LiteralSearch(TABLE), LiteralSearch(TABLE, at_once=False)
LOGS = sorted(FOLDER.glob("*.log"))
LITERAL_PARTS = (*TABLE, b"\n", b"\n", b" ", b"x" * 40, b"na", b"n", b"step" * 9, b"\xff\0")


@given(st.lists(st.sampled_from(LITERAL_PARTS), max_size=60).map(b"".join))
def test_both_searches_find_the_same_lines_of_any_bytes(data: bytes) -> None:
    assert list(AT_ONCE.lines(data)) == list(IN_TURN.lines(data))


@pytest.mark.parametrize("shift", range(-30, 31, 3))
@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_literal_across_the_edge_of_a_window_is_found_once(shift: int, newline: bytes) -> None:
    longest = max(TABLE, key=len)
    data = b"." * ((1 << 18) - shift) + newline + longest + b" " + longest + b"\n. NaN\n"
    lines = list(AT_ONCE.lines(data))
    assert lines == list(IN_TURN.lines(data))
    assert len(lines) >= 2


CLOCKED = "[2025-03-04 10:{:02}:{:02}] step {} | loss 3.1 | step time 2.0 s\n"
CLOCKLESS = "step {} | loss 3.1 | step time {:.1f} s\n"


def write_log(folder: Path, *, timed: int, untimed: int, took: float, end: str = "") -> Path:
    """So many steps of 2 s with a clock from 10:00:02 on, then as many as wanted without."""
    lines = [CLOCKED.format(*divmod(2 * step, 60), step) for step in range(1, timed + 1)]
    lines += [CLOCKLESS.format(timed + step, took) for step in range(1, untimed + 1)]
    path = folder / "train.log"
    path.write_text("".join(lines) + end)
    return path


@pytest.mark.parametrize("took", [2.0, 30.0])
def test_steps_without_a_clock_after_a_clocked_part_are_counted_and_take_their_time(
    tmp_path: Path, took: float
) -> None:
    path = write_log(tmp_path, timed=10, untimed=20, took=took)
    log = read_log(path)
    assert len(log.step_seconds) == 30
    assert log.step_seconds[-20:].tolist() == pytest.approx([took] * 20)
    assert log.last_step == 30


def test_a_job_that_is_cancelled_while_such_steps_go_on_had_made_progress(tmp_path: Path) -> None:
    end = "slurmstepd: error: *** JOB 7 ON gpu-07 CANCELLED AT 2025-03-04T10:10:24 ***\n"
    path = write_log(tmp_path, timed=10, untimed=20, took=30.0, end=end)
    incident = judge_log(read_log(path))
    # Ten steps of 2 s and twenty of 30 s ended at 10:10:20.
    assert incident.seconds_after_last_progress == pytest.approx(4.0, abs=0.1)
    assert incident.outcome == "cancelled"


CASES: dict[str, dict[str, Any]] = yaml.load(
    (Path(__file__).parents[2] / "fixtures/field-reports/joblogs.yaml").read_text(),
    yaml.CSafeLoader,
)


@pytest.mark.parametrize("name", CASES)
def test_a_log_of_the_field_names_its_cause(tmp_path: Path, name: str) -> None:
    case, path = CASES[name], tmp_path / "job.log"
    path.write_text(case["log"] + "\n")
    found = judge_log(read_log(path))
    node = found.group if found.blame == "group" else None
    assert {
        "outcome": found.outcome, "cause": found.cause, "class": found.failure_class,
        "ranks": list(found.ranks), "node": node, "log": case["log"],
    } == case  # fmt: skip
