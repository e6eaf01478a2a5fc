"""Who holds a job up by the answers of NCCL's status socket: many jobs as rows, one runner."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep_outcomes.progress.launch_finding import LaunchFinding
from lockstep_outcomes.progress.launches import LaunchHistory
from lockstep_records.nccl.ras import read_answers
from lockstep_records.nccl.ras_answer import LargeAnswerError, RasError

from .ras_mesh import as_json, as_text

RECORDED = Path(__file__).parents[2] / "fixtures" / "h100" / "ras-hang.txt"
E, B = "A: 5 5 5 5 5 5 5 5", "A: 7 7 7 6 7 7 7 7"
# A name, the polls, the kind and the late ranks by JSON, and by text where that knows less.
CASES = {
    "one behind": ([E, B, B, B], "hang", [3]),
    "behind for one answer": ([E, B], "moving", []),
    "one answer is no hang": ([B], "suspect", [3]),
    "behind, and it moves": ([B, "A: 9 9 9 8 9 9 9 9"], "moving", []),
    "two behind": (["A: 7 6 7 7 7 7 6 7"] * 3, "hang", [1, 6]),
    "one has launched nothing": (["A: 7 7 0 7 7 7 7 7"] * 2, "hang", [2]),
    "one ahead is not seven behind": (["A: 6 6 6 6 6 6 6 7"] * 3, "hang", [7]),
    "one silent": (["A: 7 7 7 x 7 7 7 7"] * 2, "hang", [3]),
    "silent, then dead": (["A: 7 7 7 x 7 7 7 7", "A: 7 7 7 d 7 7 7 7"], "hang", [3]),
    "silent while others move": (["A: 7 7 x", "A: 8 8 x"], "moving", []),
    "most are dead, so the job ends": (["A: 7 d d d"] * 3, "suspect", [1, 2, 3]),
    "all launched": ([B.replace("6", "7")] * 4, "still", []),
    "in a small group": (["A: 5 5 5 5 | B[0,1]: 9 9 | C[2,3]: 9 8"] * 2, "hang", [3]),
    "victims in another group": (["A: 5 5 5 4 | C[2,3]: 8 7 | B[0,2]: 3 2"] * 2, "hang", [3]),
    "a group rests, and its last goes on elsewhere": (
        ["A: 5 5 5 4 | C[2,3]: 8 8", "A: 5 5 5 4 | C[2,3]: 9 9"], "moving", [],
    ),
    "a call of another function": (["A: 5/1 5/1 4/2 5/1"] * 2, "hang", [2]),
    "waiting for each other": (["A: 5 5 | B: 5 4", "A: 5 5 | B: 5 4"], "hang", [1]),
    "in a circle": (["A: 5 4 | B: 7 8"] * 2, "still", []),
    "it starts": (["A: 0i 0i 0i"] * 3, "starting", []),
    "it ends": (["A: 9e 9e 9e"] * 3, "ending", []),
    "one has left": (["A: 5 5 5 -"] * 2, "still", []),
    "groups without a common one": (["A[0,1]: 5 5 | B[2,3]: 6 5"] * 2, "hang", [1]),
    "a side group waits, and all go on": (
        ["A: 5 5 | S[0,1]: 2 1", "A: 6 6 | S[0,1]: 2 1"], "moving", [],
    ),
    "one process has left, and others go": (["A: 5 5e - -"] * 3, "still", []),
    "nothing but sends": (["A: 0 0 0 0"] * 3, "still", []),
}  # fmt: skip


def judged(polls: list[str], least_polls: int = 2) -> LaunchFinding:
    history = LaunchHistory()
    for index, poll in enumerate(polls):
        [answer] = read_answers(poll.encode())
        history.ingest(answer, 30.0 * index)
    return history.finding(least_polls)


@pytest.mark.parametrize("name", CASES)
def test_late_ranks_are_named_once_their_counts_stay(name: str) -> None:
    polls, kind, ranks = CASES[name]
    found = judged([as_json(poll, comma=index % 2 == 1) for index, poll in enumerate(polls)])
    assert (found.kind, [each.rank for each in found.late]) == (kind, list(ranks))


@pytest.mark.parametrize("summed", [False, True], ids=["2.26", "2.24"])
@pytest.mark.parametrize(
    ("name", "ranks"), [("one behind", [3]), ("two behind", [1, 6]), ("one silent", [3])]
)
def test_a_text_names_the_same_ranks(name: str, ranks: list[int], summed: bool) -> None:
    polls, kind, _ = CASES[name]
    found = judged([as_text(poll, summed=summed) for poll in polls])
    assert (found.kind, [each.rank for each in found.late]) == (kind, ranks)


def test_a_text_names_by_number_who_is_left_when_those_ahead_have_names() -> None:
    found = judged([as_text("A: 7 6 6 6 6 6 6 7")] * 2)
    assert (found.kind, [each.why for each in found.late]) == ("hang", ["ahead", "ahead"])
    assert "ranks 0 and 7 (all on 10.0.0.1) alone have launched 7" in found.named


def test_a_process_that_nccl_calls_dead_needs_no_second_answer() -> None:
    dead = (
        "DEAD\n  1 job process is considered dead\n  Process 7 on node 10.0.0.1 managing GPU 3\n\n"
    )
    text = as_text("A: 7 7 x 7").replace("======\n\n#", f"======\n\n{dead}#")
    assert judged([text]).kind == "suspect"
    found = judged([text.replace("process 1002", "process 7")])
    assert (found.kind, found.late[0].why) == ("hang", "dead")


def test_a_text_that_names_no_rank_says_how_many_are_behind() -> None:
    found = judged([as_text("A: 7 7 7 7 7 4 4 4")] * 2)
    assert found.kind == "hang"
    assert "3 ranks of communicator 0000000000000041, which the text does not name" in found.named
    assert judged([as_text(E)] * 2).kind == "unseen"


def test_the_words_name_process_communicator_function_and_counts() -> None:
    assert judged([as_json(B)] * 3).named == (
        "rank 3 (pid 1003 on 10.0.0.1, GPU 3) has launched 6 AllReduce in communicator"
        " 0000000000000041, the others 7"
    )


def test_a_real_hang_is_read_in_all_three_formats() -> None:
    answers = read_answers(RECORDED.read_bytes())
    for answer in answers:
        history = LaunchHistory()
        history.ingest(answer, 0.0)
        history.ingest(answer, 30.0)
        [late] = history.finding().late
        assert (late.rank, late.launched, late.process.pid) == (1, (196, 206), 1174)
    assert len(answers) == 3


def _changed(**changes: object) -> str:
    document = json.loads(as_json("A: 1 1"))
    document["communicators"][0]["ranks"][0] |= changes
    return json.dumps(document)


BROKEN: dict[str, tuple[Callable[[], str], str]] = {
    "nothing": (lambda: "", "holds no answer"),
    "another service": (lambda: "SSH-2.0-OpenSSH_9.6\r\n", "holds no answer"),
    "half a text": (lambda: as_text(B)[:-200], "ends early"),
    "half of JSON": (lambda: as_json(B)[:-300], "ends early"),
    "deep": (lambda: '{\n "nccl_version": ' + "[" * 100_000 + "}", "no"),
    "a rank twice": (lambda: _changed(rank=1), "has a rank twice"),
    "a rank beyond the size": (lambda: _changed(rank=7), "has rank 7"),
    "a negative count": (lambda: _changed(collective_counts={"AllReduce": -1}), ">= 0"),
    "a huge count": (lambda: _changed(collective_counts={"AllReduce": 10**30}), "<="),
    "a function of no name": (lambda: _changed(collective_counts={"\x1b[2J": 1}), "regex"),
    "many functions": (
        lambda: _changed(collective_counts={f"F{n}": 1 for n in range(999)}), "more functions",
    ),
    "a long name": (lambda: _changed(collective_counts={"F" * 99: 1}), "regex"),
    "a function with a line's end": (lambda: _changed(collective_counts={"F\n": 1}), "regex"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_no_answer_is_has_one_sentence(name: str) -> None:
    make, words = BROKEN[name]
    with pytest.raises(RasError, match=words):
        read_answers(make().encode())


BLANK = as_text(B) + "\n" * 2000
LISTED = as_text(B).replace("MISMATCH\n ", f"MISMATCH\n  The missing ranks: {'1,' * 2000}1\n ")
CROWD = as_text(B).replace("       8  ", " 1000000  ").replace("7 ranks have", "999999 ranks have")


@pytest.mark.parametrize("text", [as_json(E), BLANK, LISTED, '{\n"nccl_version": {' + "{" * 99])
def test_an_answer_of_more_ranks_than_are_read_is_too_large(text: str) -> None:
    with pytest.raises(LargeAnswerError):
        read_answers(text.encode(), max_ranks=7)


def test_no_rank_gets_a_number_because_a_line_counts_a_million() -> None:
    [answer] = read_answers(CROWD.replace("operation 7", "operation 3").encode(), max_ranks=7)
    assert len(answer.communicators[0].ranks) == 1


def test_a_host_that_is_no_address_is_unknown() -> None:
    [answer] = read_answers(_changed(host="n1 \x1b[31m").encode())
    assert answer.communicators[0].ranks[0].process.host == ""


def test_no_order_of_ranks_changes_who_is_named() -> None:
    for counts in itertools.permutations((7, 7, 6, 7)):
        line = "A: " + " ".join(map(str, counts))
        assert [each.rank for each in judged([as_json(line)] * 2).late] == [counts.index(6)]
