"""``lockstep page JOB`` shows the ranks of a job on this node, each in one line."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from lockstep_cli import page as page_command

from ..live_page import LivePage


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(page_command.page, list(arguments), env={"LOCKSTEP_DIR": str(root)})


def test_each_rank_has_a_line_and_one_that_cannot_be_read_a_sentence(root: Path) -> None:
    pages = [LivePage(root, rank=rank) for rank in range(2)]
    for page in pages:
        page.step(7)
    pages[1].phase("done")
    (pages[0].path.parent / "rank-00002.page").write_bytes(b"short")
    result = run(root, "job")
    assert result.exit_code == 0, result.output
    title, _, first, second, third = result.output.splitlines()
    assert title.endswith("1 attempt")
    assert "7" in first.split()
    assert "done" in second.split()
    assert "rank-00002.page" in third
    ranks = json.loads(run(root, "job", "--json").output)["ranks"]
    assert [rank.get("step") for rank in ranks] == [7, 7, None]


def test_what_is_no_record_is_refused_in_one_sentence(root: Path) -> None:
    for arguments, message in (
        (("nowhere",), "job 'nowhere' is not under"),
        (("nowhere/at/all",), "cannot be opened"),
    ):
        result = run(root, *arguments)
        assert (result.exit_code, message in result.output) == (2, True), result.output
