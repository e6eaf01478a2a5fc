from pathlib import Path

import pytest
from trainer_validation.checkpoint_soak import soak


@pytest.mark.distributed
@pytest.mark.timeout(240)
def test_twenty_kills_while_saving_leave_a_valid_newest_checkpoint_each_time(
    tmp_path: Path,
) -> None:
    result = soak(tmp_path, kills=20, seed=1)
    assert result.wrong == ()
    assert result.during_save > 0
