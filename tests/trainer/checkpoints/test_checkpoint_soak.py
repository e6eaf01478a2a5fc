from pathlib import Path

import pytest
from trainer_validation.checkpoint_soak import soak


@pytest.mark.distributed
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.release)])
def test_kills_while_saving_leave_a_valid_newest_checkpoint_each_time(
    tmp_path: Path, kills: int
) -> None:
    result = soak(tmp_path, kills=kills, seed=1)
    assert result.wrong == ()
    assert result.during_save > 0
