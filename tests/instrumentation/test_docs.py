"""Every block of code in docs/instrumentation.md runs as printed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep_records.page.reader import read_page

PAGE = Path(__file__).parents[2] / "docs" / "instrumentation.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_block_of_the_page_runs_and_its_steps_are_recorded(
    block: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_DIR", str(root))
    monkeypatch.setenv("LOCKSTEP_JOB_ID", "job-a")
    model = torch.nn.Linear(4, 4)
    names: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": [torch.ones(2, 4) for _ in range(3)],
    }
    exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102  # the page is ours
    page = read_page(root / "jobs" / "job-a" / "0" / "rank-00000.page")
    assert page.phase == "done"
    assert page.state["steps"] in {1, 3}
    assert page.state["internal_errors"] == 0
