"""Saved answers of NCCL's status socket as reports: the first line, or one sentence and exit 2."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from outcomes.progress.ras_mesh import as_json, as_text

from lockstep_reports.command import report

from ..report_command import report_json

RECORDED = Path(__file__).parents[2] / "fixtures" / "h100" / "ras-hang.txt"
BEHIND, MOVED = "A: 7 7 6 7", "A: 9 9 9 8"
OTHER = "Z: 4 4 4 4"
UNKNOWN = ("unknown", "unknown")
# The polls, then severity, verdict and words of the first line.
FOLDERS = {
    "a hang": ([BEHIND] * 3, ("hung", "rank"), "rank 2 (pid 1002 on 10.0.0.1, GPU 2)"),
    "one answer": ([BEHIND], UNKNOWN, "cannot be told yet"),
    "it moves": ([BEHIND, MOVED], ("nobody", "nobody"), "The job moves"),
    "all launched": ([OTHER] * 3, UNKNOWN, "captured graphs stand or move, is not counted"),
    "two jobs in turn": ([BEHIND, OTHER] * 3, ("hung", "rank"), "has launched 6 AllReduce"),
    "started again": ([BEHIND, BEHIND, OTHER, "Z: 5 5 5 5"], ("nobody", "nobody"), "moves"),
}


def write(folder: Path, polls: list[str]) -> Path:
    for index, poll in enumerate(polls):
        answer = as_json(poll, f"2026-11-26 16:{index:02d}:00", comma=index % 2 == 0)
        (folder / f"{index:02d}.json").write_text(f"SERVER PROTOCOL 2\r\nOK\n{answer}")
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_answers_has_a_first_line_of_what_they_show(tmp_path: Path, name: str) -> None:
    polls, (severity, kind), words = FOLDERS[name]
    found = report_json(write(tmp_path, polls))
    assert (found["severity"], found["verdict"]["kind"]) == (severity, kind)
    assert words in found["headline"]


def test_a_recorded_hang_names_rank_process_communicator_and_counts() -> None:
    assert report_json(RECORDED)["headline"] == (
        "The job hangs: rank 1 (pid 1174 on 127.0.0.1, GPU 0) has launched 196 AllReduce in"
        " communicator e42675f670ec3288, the others 206; the same in 3 answers."
    )


@pytest.mark.parametrize(
    "text",
    [
        as_text(BEHIND)[:-100],
        as_json(BEHIND)[:-100],
        "SERVER PROTOCOL 2\nERROR: Unknown command set format json\n",
        "SERVER PROTOCOL 2\nOK\n",
    ],
)
def test_what_is_not_whole_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "answer.txt"
    path.write_text(text)
    result = CliRunner().invoke(report, [str(path)])
    assert result.exit_code == 2
    assert "rank" not in result.output.replace("ranks", "")
