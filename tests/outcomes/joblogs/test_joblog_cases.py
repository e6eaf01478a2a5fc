"""Made logs of every kind are judged by their truth, whatever lines are in between."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep_catalogue.vocabulary import OUTCOMES
from lockstep_outcomes.joblogs.kinds import KINDS
from lockstep_outcomes.joblogs.outcome import Incident, judge_log
from lockstep_outcomes.joblogs.read import read_log

from ..joblog_cases import FOLDER, TRUTHS, Truth

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
RANK_SAFE = sorted(name for name, truth in TRUTHS.items() if truth.blame == "rank")


def judged(path: Path) -> Incident:
    return judge_log(read_log(path))


def truth_of(incident: Incident) -> Truth:
    group = incident.group if incident.blame == "group" else None
    return Truth(
        incident.outcome, incident.blame, incident.cause, incident.failure_class,
        incident.ranks, group,
    )  # fmt: skip


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
    truth = truth_of(judged(path))
    expected = TRUTHS[name]
    assert truth == Truth(
        expected.outcome, expected.blame, expected.cause, expected.failure_class, expected.ranks,
        "rack9-node3" if expected.group else None,
    )  # fmt: skip


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
    assert judged(path).blame == expected.blame
    assert judged(path).ranks == tuple(sorted(other[rank] for rank in expected.ranks))


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
