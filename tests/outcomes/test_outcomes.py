"""The outcome table: each case of the field gets its outcome, class, cause and its ranks."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_catalogue.vocabulary import FAILURE_CLASSES, OUTCOMES, VERDICTS
from lockstep_outcomes.classify import Classification, classify
from lockstep_outcomes.evidence import (
    LATE_SECONDS,
    Evidence,
    NodeEvent,
    Presence,
    RankEnd,
    SignOrigin,
    evidence_of,
    find_owners,
    node_events_of,
    ranks_of,
)
from lockstep_outcomes.joblogs.kinds import KIND_BY_NAME, KINDS, Tier
from lockstep_outcomes.progress.progress_events import hangs_of
from lockstep_outcomes.rules import EXIT_SIGNS, RULES, SCHEDULER_SIGNS, SIGNAL_SIGNS
from lockstep_outcomes.slurm import ENDED_STATES, OPEN_STATES
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import job_folder, page_path
from lockstep_records.files.last_output import OutputRing, RankError, write_error
from lockstep_records.page.writer import PageWriter, RankIdentity

DOCS = Path(__file__).parents[2] / "docs"
# ruff: noqa: E501  # a case stands on one line, as a row of the table does
OOM = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in step\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
)
TIMEOUT = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=13, OpType=ALLREDUCE) ran for 600029 milliseconds before timing out."
)
CLOSED = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
)
RPC_CLOSED = (
    "RuntimeError: eof (this error originated at tensorpipe/transport/shm/connection_impl.cc:259)"
)
BUG = 'Traceback (most recent call last):\n  File "m.py", line 3\nTypeError: forward() got 3'
MISSING = (
    'Traceback (most recent call last):\n  File "loader.py", line 3, in read_shard\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-0001.tar'"
)


def ends(*codes: int, **texts: str) -> tuple[RankEnd, ...]:
    """Ranks by exit status; the first that failed by itself is first. ``r3`` is rank 3's output."""
    failed = [rank for rank, code in enumerate(codes) if code not in {0, -15, 75}]
    return tuple(
        RankEnd(
            rank=rank, exit_code=code, first=bool(failed) and rank == failed[0],
            last_lines=texts.get(f"r{rank}", texts.get("each", "")), time=100.0,
        )
        for rank, code in enumerate(codes)
    )  # fmt: skip


def apart(text: str, *, done: int, failed: int, behind: int = 0) -> tuple[RankEnd, ...]:
    """Ranks whose loop has ended after step 9, and ranks that fail then or so many steps behind."""
    left = [RankEnd(rank=done + rank, exit_code=1, phase="failed", last_step=9 - behind,
                    last_lines=text) for rank in range(failed)]  # fmt: skip
    return (*(RankEnd(rank=rank, phase="done", last_step=9) for rank in range(done)), *left)


def case(*values: Any, **evidence: Any) -> Any:
    outcome, failure_class, cause, cause_ranks = values
    return pytest.param(
        Evidence(**evidence),
        outcome,
        failure_class,
        cause,
        cause_ranks,
        id=cause + str(cause_ranks),
    )


def lines(text: str, ranks: range) -> dict[str, str]:
    return {f"r{rank}": text.format(rank) for rank in ranks}


CASES = [
    case("failed", "unknown", "peer_failure", (), ranks=ends(1, 1, each=RPC_CLOSED)),
    case("failed", "user", "uneven_end", (3,), ranks=apart(CLOSED, done=3, failed=1)),
    case("failed", "user", "uneven_end", (0,), ranks=apart(CLOSED, done=1, failed=3)),
    case("failed", "user", "uneven_end", (), ranks=apart(CLOSED, done=1, failed=1)),
    case("failed", "user", "gpu_oom", (1,), ranks=apart(OOM, done=1, failed=1)),
    case("failed", "unknown", "peer_failure", (), ranks=apart(CLOSED, done=1, failed=1, behind=1)),
    case("failed", "user", "pipe_closed", (0,), ranks=ends(1, -15, r0="BrokenPipeError: [Errno 32] Broken pipe")),
    case("succeeded", None, "success", (), ranks=ends(0, 0)),
    case("succeeded", None, "success", (), ranks=ends(0, 0, each=OOM)),
    case("failed", "user", "gpu_oom", (3,), ranks=ends(-6, -6, -6, 1, r3=OOM, **lines(TIMEOUT, range(3)))),
    case("failed", "user", "gpu_oom", (), ranks=ends(1, 1, 1, 1, each=OOM)),
    case("failed", "user", "host_oom", (2,), ranks=ends(-15, -15, 76)),
    case("failed", "user", "host_oom", (1,), ranks=ends(-15, -9), node_events=(
        NodeEvent(sign="host_oom", node="n1", ranks=(1,), detail="Out of memory: Killed process"),)),
    case("failed", "unknown", "collective_timeout", (), ranks=ends(-6, -6, each=TIMEOUT.format(0))),
    case("failed", "unknown", "hang", (5,), ranks=ends(-6, -6, each=TIMEOUT.format(0)),
         has_hung=True, missing=(5,)),
    case("failed", "unknown", "segfault", (1,), ranks=ends(-15, -11, -15, -15)),
    case("failed", "user", "segfault", (), ranks=ends(-11, -11, -11, -11)),
    case("failed", "unknown", "killed", (2,), ranks=ends(1, 1, -9, 1, r0=CLOSED, r1=CLOSED)[2:]),
    case("failed", "unknown", "exit", (0,), ranks=ends(3, -15, -9, -9)),
    case("failed", "user", "exception", (1,), ranks=ends(-15, 1, -15, r1=BUG)),
    case("failed", "user", "exception", (), ranks=ends(1, 1, 1, each=BUG)),
    case("failed", "user", "data_error", (), ranks=ends(1, 1, 1, 1, each=MISSING)),
    case("failed", "user", "data_error", (2,), ranks=ends(-15, -15, 1, -15, r2=MISSING)),
    case("failed", "user", "bad_arguments", (), ranks=ends(2, 2)),
    case("failed", "user", "launch_failure", (), ranks=ends(127, 127)),
    case("failed", "user", "launch_failure", (), scheduler=("ImagePullBackOff",)),
    case("failed", "infra", "launch_system", (), scheduler=("LAUNCH_FAILED",)),
    case("failed", "user", "wrong_topology", (), ranks=ends(1, -15, r0=(
        'Traceback (most recent call last):\n  File "a.py"\n'
        "ValueError: world_size (8) is not equal to tp x pp (16)"))),
    case("failed", "user", "wrong_topology", (), ranks=ends(1, -15, r0="CUDA error: invalid device ordinal")),
    case("failed", "user", "wrong_topology", (), ranks=ends(2, -15, r0="x: WORLD_SIZE=8 and ROLE_WORLD_SIZE=2 do not agree")),
    case("time_limit", "user", "time_limit", (), ranks=ends(-15, -9, 1, each=BUG), scheduler=("TIMEOUT",)),
    case("time_limit", "user", "time_limit", (), ranks=ends(-15, -15), launcher_signal="SIGTERM",
         at_time_limit=True, outside_time=99.0),
    case("failed", "user", "exception", (0,), ranks=ends(1, -15, r0=BUG), scheduler=("TIMEOUT",),
         outside_time=4000.0),
    case("succeeded", None, "time_limit_after_success", (), ranks=ends(-15, -15, r0="training is done"),
         scheduler=("TIMEOUT",)),
    case("succeeded", None, "teardown_crash", (), ranks=ends(-11, -6, each="Training completed")),
    case("succeeded", None, "teardown_crash", (), ranks=tuple(
        RankEnd(rank=rank, exit_code=-11, phase="done") for rank in range(2))),
    case("not_converged", None, "not_converged", (), ranks=ends(0, 0), reported=("not_converged",)),
    case("failed", "unknown", "hang", (1,), ranks=ends(-15, -9), launcher_signal="SIGTERM",
         has_hung=True, missing=(1,)),
    case("preempted", None, "preemption", (), ranks=ends(75, 75)),
    case("preempted", None, "preemption", (), ranks=ends(-15, -9), scheduler=("PREEMPTED",)),
    case("preempted", None, "eviction", (), scheduler=("Evicted",)),
    case("failed", "infra", "node_failure", (), scheduler=("NODE_FAIL",)),
    case("failed", "infra", "node_failure", (), ranks=ends(-6, -6, each=TIMEOUT.format(0)), node_events=(
        NodeEvent(sign="node_lost", node="n7", detail="gone"),)),
    case("failed", "infra", "xid", (3,), ranks=ends(-15, -15, -15, 1), node_events=(
        NodeEvent(sign="xid", node="n7", ranks=(3,), detail="79 fallen off the bus"),)),
    case("succeeded", None, "success", (), ranks=ends(0, 0), node_events=(
        NodeEvent(sign="xid", node="n7", ranks=(1,), detail="79"),)),
    case("failed", "user", "exception", (0,), ranks=ends(1, -15, r0=BUG), node_events=(
        NodeEvent(sign="xid", node="n7", ranks=(1,), detail="43 of the program's own"),)),
    case("cancelled", None, "cancelled", (), ranks=ends(-15, -15), launcher_signal="SIGINT"),
    case("cancelled", None, "cancelled", (), ranks=ends(75, -9), launcher_signal="SIGTERM"),
    case("cancelled", None, "cancelled", (), scheduler=("CANCELLED",)),
    case("failed", "unknown", "peer_failure", (), ranks=ends(1, 1, each=CLOSED)),
    case("failed", "unknown", "peer_failure", (), ranks=ends(-15, -15)),
    case("unknown", "unknown", "unknown", ()),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "outcome", "failure_class", "cause", "cause_ranks"), CASES)
def test_the_table_judges(
    evidence: Evidence,
    outcome: str,
    failure_class: str | None,
    cause: str,
    cause_ranks: tuple[int, ...],
) -> None:
    judged = classify(evidence)
    assert (judged.outcome, judged.failure_class, judged.cause, judged.cause_ranks) == (
        outcome, failure_class, cause, cause_ranks,
    ), judged  # fmt: skip
    assert judged.reason.endswith(".")
    assert "{" not in judged.reason


def test_a_node_that_failed_is_named_where_no_rank_is() -> None:
    lost = NodeEvent(sign="node_lost", node="n7", detail="kubelet stopped posting status")
    judged = classify(Evidence(ranks=ends(-15, -15), node_events=(lost,)))
    assert (judged.blame, judged.cause_node) == ("group", "n7")
    assert judged.evidence[0] == "node: kubelet stopped posting status"


def test_every_cause_that_a_line_can_name_has_its_rule_with_the_same_class() -> None:
    for kind in KINDS:
        if kind.tier not in {Tier.CAUSE, Tier.CRASH, Tier.NETWORK}:
            continue
        rule = next(rule for rule in RULES if rule.name == kind.name)
        assert (rule.failure_class, rule.blame) == (
            KIND_BY_NAME[kind.name].failure_class,
            kind.blame,
        )
        judged = classify(Evidence(reported=(kind.name,)))
        assert (judged.outcome, judged.cause) == ("failed", kind.name)


def test_every_row_is_of_the_vocabularies_and_every_sign_has_a_row() -> None:
    signs = {sign for rule in RULES for sign in rule.signs}
    for rule in RULES:
        assert rule.outcome in OUTCOMES
        assert rule.failure_class in {*FAILURE_CLASSES, None}
        assert rule.blame in VERDICTS
        assert (rule.failure_class is None) == (
            rule.outcome not in {"failed", "time_limit", "unknown"}
        )
    tables = (EXIT_SIGNS, SIGNAL_SIGNS, SCHEDULER_SIGNS)
    assert {sign for table in tables for sign in table.values()} <= signs


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("COMPLETED", "succeeded"),
        ("FAILED", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("NODE_FAIL", "failed"),
        ("BOOT_FAIL", "failed"),
        ("LAUNCH_FAILED", "failed"),
        ("RECONFIG_FAIL", "failed"),
        ("SPECIAL_EXIT", "failed"),
        ("TIMEOUT", "time_limit"),
        ("DEADLINE", "time_limit"),
        ("CANCELLED", "cancelled"),
        ("REVOKED", "cancelled"),
        ("PREEMPTED", "preempted"),
        ("REQUEUED", "preempted"),
    ],
)
def test_a_state_of_slurm_alone_has_an_outcome(state: str, outcome: str) -> None:
    assert classify(Evidence(scheduler=(state,))).outcome == outcome
    assert state in ENDED_STATES - OPEN_STATES


ranks = st.builds(
    RankEnd,
    rank=st.integers(0, 9),
    exit_code=st.none() | st.integers(-70, 260),
    first=st.booleans(),
    exception=st.none() | st.text(max_size=40),
    last_lines=st.sampled_from(["", OOM, BUG, CLOSED, "training is done", "\0\x1b[31m{}", TIMEOUT]),
    phase=st.sampled_from([None, "done", "failed", "sync"]),
    time=st.none() | st.floats(0, 1e9),
)


@settings(max_examples=150, deadline=None)
@given(
    ranks=st.lists(ranks, max_size=5),
    scheduler=st.lists(st.sampled_from([*SCHEDULER_SIGNS, "Strange"]), max_size=2),
    launcher_signal=st.sampled_from([None, "SIGTERM"]),
    missing=st.lists(st.integers(0, 9), max_size=2),
    has_hung=st.booleans(),
)
def test_whatever_the_evidence_there_is_one_outcome_and_no_rank_that_was_not_there(
    ranks: list[RankEnd],
    scheduler: list[str],
    launcher_signal: str | None,
    missing: list[int],
    has_hung: bool,  # hypothesis gives it by name
) -> None:
    evidence = Evidence(
        ranks=tuple(ranks), scheduler=tuple(scheduler), launcher_signal=launcher_signal,
        missing=tuple(missing), has_hung=has_hung,
    )  # fmt: skip
    judged: Classification = classify(evidence)
    assert judged.outcome in OUTCOMES
    assert set(judged.cause_ranks) <= {end.rank for end in ranks} | set(missing)
    assert judged.reason.isprintable()


@dataclass(frozen=True)
class Written:
    kind: str
    fields: dict[str, Any]


def test_evidence_is_read_from_events_of_any_shape() -> None:
    written = (
        Written("rank_ended", {"rank": 1, "exit_code": -9, "first": True, "exception": None}),
        Written("rank_ended", {"rank": "x", "exit_code": 1}),
        Written("rank_ended", {"rank": 2, "exit_code": "1", "first": 1}),
        Written("hang", {"missing": [4, "5", True]}),
        Written("hang", {"missing": 7}),
        Written("node_event", {"sign": "xid", "detail": "79", "ranks": [1]}),
        Written("node_event", {"sign": 5}),
    )
    events = [
        Event(kind=each.kind, job_id="j", attempt=1, fields=each.fields, node="n1", time=5.0)
        for each in written
    ]
    [first, second] = ranks_of(events, 1)
    assert (first.rank, first.exit_code, first.first) == (1, -9, True)
    assert (second.exit_code, second.first, second.node) == (None, False, "n1")
    assert [hang.missing for hang in hangs_of(events, 1)] == [(4,), ()]
    assert hangs_of(events, 0) == []
    [event] = node_events_of(events, 1)
    assert (event.sign, event.node, event.ranks) == ("xid", "n1", (1,))
    assert ranks_of(events, 0) == ()


def test_ranks_that_fail_in_another_call_than_most_are_in_the_reason() -> None:
    backward, barrier = (
        f"{CLOSED} (/torch/graph.py:979, in run)",
        f"{CLOSED} (c10d.py:5, in barrier)",
    )
    ranks = [RankEnd(rank=rank, exit_code=1, phase="failed", last_step=9, last_lines=CLOSED,
                     exception=barrier if rank == 1 else backward) for rank in range(4)]  # fmt: skip
    found = classify(Evidence(ranks=tuple(ranks)))
    assert found.cause == "peer_failure"
    assert "rank 1 waited in barrier (c10d.py:5) and ranks 0, 2 and 3 in run" in found.reason
    alike = [replace(rank, exception=backward) for rank in ranks]
    assert "waited" not in classify(Evidence(ranks=tuple(alike))).reason
    steps = [replace(rank, last_step=rank.rank) for rank in ranks]
    assert "waited" not in classify(Evidence(ranks=tuple(steps))).reason
    behind = [replace(rank, last_step=41 if rank.rank == 3 else 44) for rank in alike]
    assert (
        "rank 3 waited in run (graph.py:979) after step 41 and ranks 0, 1 and 2 in run "
        "(graph.py:979) after step 44"
    ) in classify(Evidence(ranks=tuple(behind))).reason


def end_rank(root: Path, rank: int, exit_code: int, *, first: bool = False) -> None:
    fields: dict[str, Any] = {"rank": rank, "exit_code": exit_code, "first": first}
    event = Event(kind="rank_ended", job_id="job", attempt=0, fields=fields)
    append_event(job_folder(root, "job"), event)


def start_rank(root: Path, rank: int) -> PageWriter:
    path = page_path(root, "job", 0, rank)
    return PageWriter(path, RankIdentity(job_id="job", rank=rank, world_size=2), rows=4)


def write_output(root: Path, rank: int, text: str) -> None:
    ring = OutputRing(page_path(root, "job", 0, rank))
    ring.write(text.encode())
    ring.close()


def test_the_last_output_of_the_rank_that_failed_names_the_cause(memory: Path) -> None:
    for rank in range(2):
        start_rank(memory, rank)
    write_output(memory, 0, "RuntimeError: Connection closed by peer\n")
    write_output(memory, 1, "step 7\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n")
    end_rank(memory, 1, 1, first=True)
    end_rank(memory, 0, -15)
    evidence = evidence_of(job_folder(memory, "job"), 0)
    judged = classify(evidence)
    assert (judged.cause, judged.cause_ranks, judged.failure_class) == ("gpu_oom", (1,), "user")
    assert evidence.world_size == 2


def test_the_error_beside_a_page_names_the_cause_without_a_launcher(memory: Path) -> None:
    pages = [start_rank(memory, rank) for rank in range(2)]
    error = RankError(
        source="except_hook", type="KeyError", message="'tokens'", file="a.py", line=3
    )
    write_error(pages[1].path, error)
    judged = classify(evidence_of(job_folder(memory, "job"), 0))
    assert (judged.outcome, judged.cause_ranks) == ("failed", (1,))
    assert "KeyError: 'tokens'" in judged.reason


def test_a_job_of_which_nothing_is_left_is_unknown(memory: Path) -> None:
    job_folder(memory, "job").mkdir(parents=True)
    assert classify(evidence_of(job_folder(memory, "job"), 0)).outcome == "unknown"


GPUS = ("GPU-a", "GPU-b")
TIMES = st.integers(0, 200).map(float)


@st.composite
def presences(draw: st.DrawFn) -> list[Presence]:
    """Ranks of jobs that follow and overlap each other, running or ended, on two GPUs."""
    found = []
    for number in range(draw(st.integers(0, 6))):
        begin, lasts = draw(TIMES), draw(st.none() | st.integers(1, 60))
        found.append(
            Presence(
                job_id=f"job-{number % 3}",
                attempt=number // 3,
                rank=number,
                begin=begin,
                end=None if lasts is None else begin + lasts,
                pid=draw(st.just(100 + number) | st.none()),
                device=draw(st.sampled_from(GPUS)),
            )
        )
    return found


@st.composite
def signs(draw: st.DrawFn) -> SignOrigin:
    """One sign: of a process, a GPU, both, or of the whole node."""
    device = draw(st.sampled_from((*GPUS, None)))
    return SignOrigin(
        times=(draw(TIMES),),
        pid=draw(st.none() | st.integers(100, 107)),
        devices=None if device is None else frozenset({device}),
    )


@given(presences(), signs())
def test_a_sign_belongs_only_to_who_was_there(ranks: list[Presence], sign: SignOrigin) -> None:
    owners, (time,) = find_owners(sign, ranks), sign.times
    for owner in owners:
        assert owner.begin <= time
        assert owner.end is None or time <= owner.end + LATE_SECONDS
        assert sign.devices is None or owner.device in sign.devices
    named = [owner for owner in owners if owner.pid == sign.pid]
    if sign.pid is not None and named:
        assert owners == named
    if sign.pid is not None and sign.devices is None:
        assert owners == named
    # Who runs at that moment comes before who has just ended.
    if any(owner.end is None or time <= owner.end for owner in owners):
        assert all(owner.end is None or time <= owner.end for owner in owners)


@given(presences(), signs())
def test_no_rank_that_ran_on_the_gpu_is_left_out(ranks: list[Presence], sign: SignOrigin) -> None:
    (time,) = sign.times
    running = [
        rank
        for rank in ranks
        if rank.begin <= time
        and (rank.end is None or time <= rank.end)
        and (sign.devices is None or rank.device in sign.devices)
    ]
    if sign.pid is None:
        assert running == [rank for rank in find_owners(sign, ranks) if rank in running]
    for rank in running:
        if sign.pid is not None and rank.pid == sign.pid:
            assert rank in find_owners(sign, ranks)
