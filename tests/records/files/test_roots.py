"""Harm to pages in /dev/shm is said in one sentence with its remedy."""

import os
from pathlib import Path

import pytest

from lockstep_records.files import roots
from lockstep_records.files.roots import harm_of

SHARED = "23 1 0:22 / /dev/shm rw - tmpfs shm rw\n"
OWN = "99 1 0:77 / /dev/shm rw - tmpfs tmpfs rw\n"
ROOT = Path("/dev/shm/lockstep")  # noqa: S108  # nothing is written there


@pytest.fixture(name="machine")
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("self", "1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mountinfo").write_text(SHARED)
    monkeypatch.setattr(roots, "_LOGIND_RUNS", tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    return tmp_path


def harm(machine: Path, root: Path = ROOT) -> str:
    return harm_of(root, machine, machine / "logind.conf")


def test_logind_removes_pages_unless_it_is_told_not_to(machine: Path) -> None:
    assert "RemoveIPC" in harm(machine)
    (machine / "logind.conf").write_text("[Login]\n#RemoveIPC=no\n")
    assert "RemoveIPC" in harm(machine)
    (machine / "logind.conf").write_text("[Login]\nRemoveIPC=no\n")
    assert harm(machine) == ""
    (machine / "logind.conf.d").mkdir()
    (machine / "logind.conf.d" / "a.conf").write_text("[Login]\nRemoveIPC=yes\n")
    assert "RemoveIPC" in harm(machine)


def test_users_of_the_system_are_left_alone(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert harm(machine) == ""


def test_a_private_folder_is_not_seen_by_the_agent(machine: Path) -> None:
    (machine / "self" / "mountinfo").write_text(SHARED + OWN)
    assert "is this job's own" in harm(machine)


def test_nothing_harms_elsewhere(machine: Path) -> None:
    assert harm(machine, Path("/run/lockstep")) == ""


def test_a_pod_without_the_volume_is_told_which_one(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert "mount an emptyDir of medium Memory named lockstep" in harm(machine)
    assert harm(machine, Path("/run/lockstep")) == ""
