import hashlib
import json
from pathlib import Path

import pytest
from trainer_validation.checkpoint_soak import soak

from lockstep_trainer.checkpoints.files import (
    Checkpoint,
    Facts,
    InvalidCheckpointError,
    commit,
    find_newest,
    find_newest_committed,
    folder_of,
    keep_newest,
    make_fresh,
    verify,
)


def put(root: Path, step: int, facts: Facts | None = None) -> Checkpoint:
    folder = folder_of(root, step)
    make_fresh(folder)
    (folder / "state").write_bytes(b"state")
    return commit(folder, step, {"state": hashlib.sha256(b"state").hexdigest()}, facts or {})


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_committed_checkpoint_is_found_with_its_step_and_facts(tmp_path: Path) -> None:
    put(tmp_path, 7, {"layers": 2})
    newest, reasons = find_newest(tmp_path)
    assert newest is not None
    assert (newest.step, newest.facts, reasons) == (7, {"layers": 2}, [])
    assert names_in(newest.path) == ["manifest.json", "state"]


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert find_newest(tmp_path) == (None, [])
    assert find_newest(tmp_path / "missing") == (None, [])
    assert find_newest_committed(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("state", b"statf", "is not what its manifest says"),
        ("state", b"sta", "is not what its manifest says"),
        ("state", None, "has no readable state"),
        ("manifest.json", None, "has no manifest: it was not finished"),
        ("manifest.json", b"{", "the manifest is not JSON"),
        ("manifest.json", b"\xff\x00", "the manifest is not JSON"),
        ("manifest.json", b'{"more": ' + b"[" * 100_000, "the manifest is not JSON"),
        ("manifest.json", b"[]", "the manifest is none of version 2"),
        ("manifest.json", b'{"version": 1}', "the manifest is none of version 2"),
        (
            "manifest.json",
            b'{"version": 2, "step": 2, "facts": {}, "files": {"../../x": "0"}}',
            "the manifest is none of version 2",
        ),
    ],
)
def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, name: str, damage: bytes | None, sentence: str
) -> None:
    put(tmp_path, 1)
    damaged = put(tmp_path, 2).path / name
    damaged.unlink()
    if damage is not None:
        damaged.write_bytes(damage)
    newest, reasons = find_newest(tmp_path)
    assert newest is not None
    assert newest.step == 1
    assert len(reasons) == 1
    assert sentence in reasons[0]


def test_a_manifest_with_another_step_than_its_folder_is_invalid(tmp_path: Path) -> None:
    path = put(tmp_path, 2).path
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "step": 9}))
    with pytest.raises(InvalidCheckpointError, match="step-00000002"):
        verify(path)


def test_an_unfinished_checkpoint_is_not_found_and_goes_with_the_next_save(tmp_path: Path) -> None:
    for step in (2, 3):
        make_fresh(folder_of(tmp_path, step))
        (folder_of(tmp_path, step) / "state").write_bytes(b"half")
    assert find_newest_committed(tmp_path) is None
    keep_newest(tmp_path, put(tmp_path, 3), 2)
    assert names_in(tmp_path) == ["step-00000003"]


def test_an_invalid_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    path = put(tmp_path, 2).path
    (path / "state").write_bytes(b"damaged")
    assert put(tmp_path, 2) == verify(path)


def test_the_newest_checkpoints_are_kept_and_the_verified_one_always(tmp_path: Path) -> None:
    for step in (1, 2, 3, 9):
        put(tmp_path, step)
    keep_newest(tmp_path, verify(tmp_path / "step-00000003"), 2)
    assert names_in(tmp_path) == ["step-00000003", "step-00000009"]
    keep_newest(tmp_path, verify(tmp_path / "step-00000003"), 1)
    assert names_in(tmp_path) == ["step-00000003"]


@pytest.mark.distributed
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.release)])
def test_kills_while_saving_leave_a_valid_newest_checkpoint(tmp_path: Path, kills: int) -> None:
    result = soak(tmp_path, kills=kills, seed=1)
    assert result.wrong == ()
    assert result.during_save > 0
