"""The id of a job of Slurm: as sacct prints it, on every node and in every step."""

import pytest

from lockstep.identity.rank_identity import identity_from
from lockstep.identity.scheduler import alias_of, given_job_id, slurm_job_of
from lockstep_records.files.jobs import check_job_id

JOB = {"SLURM_JOB_ID": "4242", "SLURM_CLUSTER_NAME": "lab"}
ARRAY = {"SLURM_ARRAY_JOB_ID": "4240", "SLURM_ARRAY_TASK_ID": "7"}
# As Slurm 22.05 sets them on both nodes of a step over two components.
HET = {
    "SLURM_JOB_ID": "4243",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID_HET_GROUP_0": "4243",
    "SLURM_JOB_ID_HET_GROUP_1": "4244",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-3,07]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[08-12],login",
}


@pytest.mark.parametrize(
    ("environment", "job_id"),
    [
        ({}, ""),
        (JOB, "4242"),
        (JOB | ARRAY, "4240_7"),
        (HET | {"SLURMD_NODENAME": "n2"}, "4243+0"),
        (HET | {"SLURMD_NODENAME": "n07"}, "4243+0"),
        (HET | {"SLURMD_NODENAME": "n10"}, "4243+1"),
        (HET | {"SLURMD_NODENAME": "login"}, "4243+1"),
        (HET | {"SLURM_JOB_ID": "4244", "SLURMD_NODENAME": "n2"}, "4243+1"),
        (HET | {"SLURMD_NODENAME": "other"}, "4243+0"),
        ({"SLURM_JOB_ID": "../x"}, ""),
    ],
)
def test_an_id_is_what_sacct_prints(environment: dict[str, str], job_id: str) -> None:
    assert slurm_job_of(environment) == job_id
    assert not job_id or check_job_id(job_id) == job_id


def test_a_step_a_batch_script_and_torchrun_in_one_job_have_one_id() -> None:
    step = {"SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "any"}
    for environment in (JOB, JOB | step, JOB | torchrun):
        identity = identity_from(environment | {"SLURM_JOB_ACCOUNT": "llm"})
        assert (identity.job_id, identity.project) == ("4242", "llm")
    assert identity_from(JOB | {"LOCKSTEP_JOB_ID": "mine"}).job_id == "mine"
    assert alias_of(JOB | ARRAY) == "slurm:lab:4240_7"


def test_an_id_that_was_meant_for_another_allocation_does_not_count() -> None:
    handed_on = {"LOCKSTEP_JOB_ID": "4200", "LOCKSTEP_ALLOCATION": "4200"}
    assert given_job_id(JOB | handed_on) == ""
    assert given_job_id(JOB | handed_on | {"LOCKSTEP_ALLOCATION": "4242"}) == "4200"
    assert given_job_id({"LOCKSTEP_JOB_ID": "mine"}) == "mine"
