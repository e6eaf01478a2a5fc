"""Real JAX over several processes on CPUs: a wrapped step function is the steps of a rank."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from servers import free_port

from lockstep_reports.analysis.steps import analyse
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.recording.recording import Recording

TRAINING = """
    import sys, time
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    import lockstep.jax

    rank, num_ranks, port, slow = map(int, sys.argv[1:])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_ranks, rank)
    mesh = Mesh(np.array(jax.devices()), ("dp",))
    rows = NamedSharding(mesh, PartitionSpec("dp"))

    def train_step(weights, batch):
        loss = lambda w: jnp.mean((batch @ w - 1.0) ** 2)
        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - 0.01 * gradient, value

    train_step = lockstep.jax.watch(jax.jit(train_step, donate_argnums=0))
    weights = jax.device_put(jnp.zeros(16), NamedSharding(mesh, PartitionSpec()))
    for step in range(60):
        time.sleep(0.04 if rank == slow else 0.01)
        batch = jax.make_array_from_process_local_data(rows, np.ones((4, 16), np.float32))
        weights, loss = train_step(weights, batch)
        if step == 3:
            train_step.lower(weights, batch)  # what jit gives is there
    assert float(loss) < 1.0
    assert train_step.monitor.next_step == 59
"""


def train(folder: Path, *, slow: int, num_ranks: int = 3) -> Path:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(TRAINING))
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if "RANK" not in name},
        "LOCKSTEP_DIR": str(folder / "jobs-root"),
        "LOCKSTEP_JOB_ID": "jax",
        "JAX_PLATFORMS": "cpu",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, script, *map(str, (rank, num_ranks, port, slow))],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    try:
        errors = [rank.communicate(timeout=90)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0] * num_ranks, errors[0][-4000:]
    assert "the monitor is off" not in "".join(errors)
    return folder / "jobs-root/jobs/jax"


@pytest.mark.distributed
@pytest.mark.parametrize(("slow", "kind"), [(1, "rank"), (-1, "unknown")])
def test_a_late_host_is_named_and_no_device_is(slow: int, kind: str, memory: Path) -> None:
    recording = read_source(str(train(memory, slow=slow)), ReadOptions())
    assert isinstance(recording, Recording)
    assert len(recording.steps.numbers) >= 58
    verdict = analyse(recording).verdict
    assert verdict.kind == kind, verdict.evidence
    if kind == "rank":
        assert (verdict.ranks, verdict.phase) == ((1,), "data")
    else:
        assert "one call to its device" in verdict.evidence[0]


def test_lockstep_itself_loads_no_jax() -> None:
    code = "import sys, lockstep; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
