"""``lockstep run`` takes torchrun's options in both spellings, and names what it does not know."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lockstep.launch import run as run_module
from lockstep.launch.job import Job
from lockstep.launch.run import run


@pytest.fixture(name="jobs")
def _jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    jobs: list[Job] = []

    def run_job(job: Job) -> int:
        jobs.append(job)
        return 0

    monkeypatch.setattr(run_module, "run_job", run_job)
    return jobs


def invoke(tmp_path: Path, *options: str) -> Result:
    return CliRunner().invoke(run, ["--dir", str(tmp_path), *options, "-m", "this", "--its-own"])


@pytest.mark.parametrize("separator", ["-", "_"])
def test_command_lines_of_torchrun_run_as_are(
    tmp_path: Path, jobs: list[Job], separator: str
) -> None:
    options = {
        "nproc-per-node": "2", "max-restarts": "3", "rdzv-id": "abc", "rdzv-backend": "c10d",
        "rdzv-endpoint": "host:29400", "rdzv-conf": "timeout=900,join_timeout=60",
        "log-dir": str(tmp_path / "logs"),
    }  # fmt: skip
    words = [
        word
        for name, value in options.items()
        for word in (f"--{name.replace('-', separator)}", value)
    ]
    result = invoke(tmp_path, *words, "--nnodes", "2:2")
    assert result.exit_code == 0, result.output
    (job,) = jobs
    assert job.program == ("-m", "this", "--its-own")
    assert (job.nproc_per_node, job.nnodes, job.max_restarts) == (2, 2, 3)
    assert (job.job_id, job.endpoint) == ("abc", "host:29400")
    assert job.rendezvous == {"timeout": "900", "join_timeout": "60"}
    assert job.log_folder == tmp_path / "logs"


def test_the_node_of_rank_0_holds_the_rendezvous(tmp_path: Path, jobs: list[Job]) -> None:
    static = ("--master-addr", "node-0", "--master-port", "1234", "--nnodes", "2", "--job-id", "a")
    for node_rank in ("0", "1"):
        result = invoke(tmp_path, *static, "--node_rank", node_rank, "--rdzv-backend", "static")
        assert result.exit_code == 0, result.output
    assert [job.endpoint for job in jobs] == ["node-0:1234"] * 2
    assert [job.rendezvous["is_host"] for job in jobs] == ["True", "False"]


def test_a_rank_for_each_processor_where_there_is_no_gpu(tmp_path: Path, jobs: list[Job]) -> None:
    for count in ("cpu", "auto"):
        assert invoke(tmp_path, "--standalone", "--nproc_per_node", count).exit_code == 0
    assert jobs[0].nproc_per_node == os.cpu_count()
    assert jobs[1].nproc_per_node >= 1
    assert jobs[0].endpoint == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tee", "3"), "No such option"),
        (("--nproc-per-node", "0"), "'0' is not a number of ranks"),
        (("--nproc-per-node", "many"), "'many' is not a number of ranks"),
        (("--nnodes", "1:4"), "'1:4': give one number of nodes"),
        (("--nnodes", "2", "--standalone"), "--standalone is one node, and --nnodes is 2"),
        (("--master-addr", "a", "--endpoint", "b:1"), "name the same; leave one out"),
        (("--rdzv-conf", "timeout"), "--rdzv-conf: 'timeout' is not KEY=VALUE"),
        (("--nnodes", "2", "--rdzv-backend", "static", "--master-addr", "a"), "needs --node-rank"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_exit_2(
    tmp_path: Path, jobs: list[Job], options: tuple[str, ...], message: str
) -> None:
    result = invoke(tmp_path, *options)
    assert (result.exit_code, jobs) == (2, [])
    assert message in " ".join(result.output.split())


# As Kubeflow's trainer and training operator set them for the second of two pods.
KUBEFLOW = {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1", "PET_MASTER_PORT": "29400",
    "PET_MASTER_ADDR": "llm-node-0-0.llm", "LOCKSTEP_NAMESPACE": "vision",
}  # fmt: skip


def test_what_kubeflow_sets_is_taken_as_torchrun_takes_it(
    tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KUBEFLOW.items():
        monkeypatch.setenv(name, value)
    for node_rank in ("0", "1"):
        monkeypatch.setenv("PET_NODE_RANK", node_rank)
        assert invoke(tmp_path).exit_code == 0
    first, second = jobs
    assert (first.nnodes, first.nproc_per_node) == (2, 4)
    assert first.endpoint == "llm-node-0-0.llm:29400"
    assert [job.rendezvous["is_host"] for job in jobs] == ["True", "False"]
    # N pods are one job.
    assert first.job_id == second.job_id == "vision.llm-node-0-0.llm.29400"
    assert invoke(tmp_path, "--nnodes", "1", "--standalone").exit_code == 0
    assert (jobs[-1].nnodes, jobs[-1].endpoint) == (1, "")


def test_an_elastic_job_of_kubeflow_has_its_rendezvous_and_says_what_has_no_effect(
    tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic = {
        "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "bert-worker-0:23456",
        "PET_RDZV_ID": "bert", "PET_NNODES": "2:2", "PET_MAX_RESTARTS": "3",
        "PET_RDZV_CONF": "timeout=900", "PET_MASTER_ADDR": "other", "PET_TEE": "3",
        "PET_MODULE": "1", "PET_LOCAL_ADDR": "10.0.0.7",
    }  # fmt: skip
    for name, value in elastic.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(run, ["--dir", str(tmp_path), "this"])
    assert result.exit_code == 0, result.output
    [job] = jobs
    assert job.program == ("-m", "this")
    assert (job.job_id, job.endpoint, job.max_restarts) == ("bert", "bert-worker-0:23456", 3)
    assert (job.rendezvous, job.local_address) == ({"timeout": "900"}, "10.0.0.7")
    assert "no effect here: PET_TEE" in result.output


@pytest.mark.parametrize(
    ("name", "value"),
    [("PET_NNODES", "1:4"), ("PET_NPROC_PER_NODE", "many"), ("PET_MASTER_PORT", "0")],
)
def test_a_wrong_value_in_the_environment_is_one_sentence(
    tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    result = invoke(tmp_path)
    assert (result.exit_code, jobs) == (2, [])
    assert repr(value) in result.output or f"{value} is not in" in result.output
