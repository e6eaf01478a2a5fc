"""lockstep deploy: what it writes holds the site's settings, and what it cannot write it says."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lockstep_cli.deploy.command import deploy
from lockstep_cli.deploy.shipped import adapt_unit

SCRIPTS = ("prolog", "epilog", "taskprolog", "healthcheck", "file-sd", "functions")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(deploy, [str(argument) for argument in arguments])


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    done = run(
        "slurm", "--to", site, "--cluster", "east", "--ledger", "https://ledger:9450",
        "--partition", "gpu", "--gpu-map", tmp_path / "map", "--expect-gpus", 8,
        "--writable", tmp_path, "--systemd", 252, "--agent-port", 9,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    settings = (site / "settings").read_text()
    assert "LOCKSTEP_CLUSTER=east" in settings
    (site / "settings").write_text(settings.replace("/run/lockstep", str(tmp_path / "pages")))
    return site


def run_script(site: Path, name: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [site / name], env=environment, capture_output=True, text=True, check=False, timeout=20
    )


def test_no_place_is_left_open_and_scripts_are_programs(site: Path) -> None:
    for path in site.iterdir():
        assert "@" not in path.read_text(), path
    for name in SCRIPTS:
        subprocess.run(["sh", "-n", site / name], check=True)
    unit = (site / "lockstep-slurm-feed.service").read_text()
    assert "--url https://ledger:9450 --cluster east --partition gpu" in unit
    assert "%d" not in unit


def test_ranks_are_told_their_job(site: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    allocation = {"SLURM_JOB_ID": "4250", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ACCOUNT": "llm"}
    lines = run_script(site, "taskprolog", **allocation).stdout.splitlines()
    assert "export LOCKSTEP_JOB_ID=4250" in lines
    assert {"export LOCKSTEP_QUEUE=gpu", "export LOCKSTEP_PROJECT=llm"} <= {*lines}
    assert f"export LOCKSTEP_DIR={tmp_path / 'pages'}" in lines
    array = {"SLURM_ARRAY_JOB_ID": "4242", "SLURM_ARRAY_TASK_ID": "7"}
    assert (
        "export LOCKSTEP_JOB_ID=4242_7"
        in run_script(site, "taskprolog", **allocation, **array).stdout
    )


def test_a_job_that_a_job_submits_does_not_inherit_its_id(site: Path) -> None:
    inherited = {"SLURM_JOB_ID": "4251", "LOCKSTEP_JOB_ID": "4250"}
    lines = run_script(site, "taskprolog", **inherited, LOCKSTEP_ALLOCATION="4250").stdout
    assert "export LOCKSTEP_JOB_ID=4251\n" in lines
    lines = run_script(site, "taskprolog", **inherited | {"LOCKSTEP_JOB_ID": "mine"}).stdout
    assert "export LOCKSTEP_JOB_ID=mine\n" in lines


def test_the_map_of_gpus_holds_a_job_from_prolog_to_epilog(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pages" / "jobs"
    folder.mkdir(parents=True)
    environment = {
        "SLURM_JOB_ID": "4250",
        "SLURM_JOB_GPUS": "0,3,MIG-ab,../x",
        "SLURM_JOB_UID": str(os.getuid()),
    }
    assert run_script(site, "prolog", **environment).returncode == 0
    assert run_script(site, "prolog", SLURM_JOB_ID="4251", SLURM_JOB_GPUS="3").returncode == 0
    files = {
        path.name: path.read_text() for path in (tmp_path / "map").iterdir() if path.name[0] != "."
    }
    assert files == {"0": "4250\n", "3": "4250\n4251\n", "MIG-ab": "4250\n"}
    assert (folder / "4250").stat().st_mode & 0o777 == 0o750
    assert run_script(site, "epilog", **environment).returncode == 0
    files = {
        path.name: path.read_text() for path in (tmp_path / "map").iterdir() if path.name[0] != "."
    }
    assert files == {"3": "4251\n"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("systemd", "--systemd", 219), "--systemd 219 is older than 239"),
        (("slurm", "--cluster", "a b"), "--cluster 'a b' is not a name"),
        (("slurm", "--gpu-map", "relative"), "--gpu-map 'relative' is not an absolute path"),
        (("slurm", "--ledger", "ledger;rm"), "--ledger 'ledger;rm' is not an address"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(
    tmp_path: Path, arguments: tuple[object, ...], words: str
) -> None:
    result = run(*arguments, "--to", tmp_path / "site")
    assert result.exit_code == 2
    assert words in result.output
    assert not (tmp_path / "site").exists()


def test_units_for_old_systemd_read_files_instead_of_credentials() -> None:
    unit = (
        "Type=exec\nDynamicUser=yes\nLoadCredential=a:/etc/a\n"
        "ExecStart=x ${CREDENTIALS_DIRECTORY}/a\n"
    )
    assert adapt_unit(unit, 247) == unit
    old = adapt_unit(unit, 239)
    assert "Type=simple\n" in old
    assert "ExecStart=x /etc/a\n" in old
    assert "Credential" not in old.replace("credentials", "")
