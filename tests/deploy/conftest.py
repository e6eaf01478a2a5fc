"""A Kubernetes control plane for the tests of a module, and the command line that asks it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import captured

from .test_kubernetes_objects import TREE, program


@pytest.fixture(name="lab", scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("lab")
    try:
        call_lab("up", folder, "--nodes", "3", "--gpus", "8", "--kinds")
        yield folder
    finally:
        call_lab("down", folder)


def call_lab(command: str, folder: Path, *options: str) -> None:
    program_of_lab = TREE.parents[1] / "tests" / "labs" / "kubernetes-lab" / "lab.py"
    subprocess.run([sys.executable, program_of_lab, command, folder, *options], check=True)


@pytest.fixture(name="kubectl", scope="module")
def _kubectl(lab: Path) -> Callable[..., str]:

    def run(*words: str | Path, text: str | None = None, fails: bool = False) -> str:
        tool, *arguments = words if words[0] == "helm" else ("kubectl", *words)
        done = captured(
            [program(str(tool)), *arguments],
            env=os.environ | {"KUBECONFIG": str(lab / "kubeconfig")},
            input=text,
        )
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    run("label", "node", "gpu-1", "gpu-2", "nvidia.com/gpu.present=true")
    run("label", "node", "gpu-3", "cloud.google.com/gke-accelerator=nvidia-h100")
    return run
