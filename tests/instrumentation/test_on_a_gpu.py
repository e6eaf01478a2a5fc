"""What only a real GPU, its driver and NCCL can show; ``bench/gpu_node`` runs these too."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from servers import captured
from torch import Tensor, nn

import lockstep
from lockstep.recorder.device import find_device, loaded_runtime
from lockstep.recorder.phases import FLAG
from lockstep_records.files.jobs import page_path
from lockstep_records.files.worker_socket import query_flight_recorder, socket_path
from lockstep_records.page.reader import Page, read_page, read_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
WIDTH = 512
cuda: Any = torch.cuda  # leaves many of its functions untyped
SLEEP_CYCLES = 20_000_000  # of cuda._sleep: some ten milliseconds


class Watched:
    """A small model on the GPU, watched."""

    def __init__(self, root: Path, model: nn.Module | None = None, **environment: str) -> None:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        self.model = (model or nn.Sequential(*layers)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batch = torch.ones(64, WIDTH, device="cuda")
        self.path = page_path(root, "job-a", 0, 0)
        self.monitor: Any = lockstep.attach(
            self.model,
            self.optimizer,
            root=root,
            rows=4096,
            environment={"LOCKSTEP_JOB_ID": "job-a", **environment},
        )

    def step(self, loss_of: Callable[[Tensor], Tensor] = torch.mean) -> Tensor:
        loss: Any = loss_of(self.model(self.batch).square())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.monitor.step(loss=loss)
        detached: Tensor = loss.detach()
        return detached

    def end(self) -> Page:
        cuda.synchronize()
        self.monitor.step()
        self.monitor.close()
        return read_page(self.path)


@pytest.fixture(name="watched")
def _watched(root: Path) -> Iterator[Watched]:
    watched = Watched(root)
    yield watched
    watched.monitor.close()


def run_python(text: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return captured(
        [sys.executable, "-c", text, *arguments], env=os.environ | environment, timeout=120
    )


def test_the_runtime_that_torch_has_loaded_is_found() -> None:
    cuda.init()
    path, prefix = loaded_runtime()
    assert Path(path).exists()
    assert prefix == ("hip" if torch.version.hip else "cuda")


def test_the_device_of_the_process_has_its_streams_handle() -> None:
    torch.zeros(1, device="cuda")
    device = find_device()
    assert device is not None
    stream = cuda.Stream()
    with cuda.stream(stream):
        assert device.current_stream(device.index) == stream.cuda_stream


def test_rows_have_the_devices_times(watched: Watched) -> None:
    for _ in range(64):
        watched.step()
    page = watched.end()
    assert page.periodic["device_steps"] > 2
    assert page.clock == "device"


def test_a_kernel_takes_as_long_as_torchs_own_events_say(watched: Watched) -> None:
    begin, end = (cuda.Event(enable_timing=True) for _ in "ab")
    watched.step()
    cuda.synchronize()
    with watched.monitor.phase("forward"):
        begin.record()
        cuda._sleep(SLEEP_CYCLES)
        end.record()
    watched.monitor.step()
    page = watched.end()
    expected = begin.elapsed_time(end) / 1e3
    rows = [row for row in read_rows(page) if row["flags"] & FLAG["device"]]
    longest = max(row["phase_seconds"]["forward"] for row in rows)
    assert longest == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_loss_of_any_format_is_read(watched: Watched, kind: torch.dtype) -> None:
    for number in range(8):
        watched.monitor.step(loss=torch.tensor(1.5 + number, device="cuda", dtype=kind))
    page = watched.end()
    assert page.state["loss"] == 8.5
    assert page.periodic["late_losses"] == 8


def test_a_loss_of_a_graph_is_copied_before_the_next_replay_overwrites_it(watched: Watched) -> None:
    value = torch.zeros((), device="cuda")
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        value += 1
    for _ in range(6):
        graph.replay()
        watched.monitor.step(loss=value)
    page = watched.end()
    assert list(page.periodic["late_loss"][:6]) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_loss_that_is_not_finite_is_seen_within_a_second(watched: Watched) -> None:
    for number in range(20):
        watched.step((lambda out: out.sum() * float("nan")) if number == 10 else torch.mean)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        watched.monitor.step(loss=torch.zeros((), device="cuda"))
        time.sleep(0.01)
    assert read_page(watched.path).periodic["nonfinite"]["loss"] >= 1


def test_a_gradient_norm_on_the_device_is_read(watched: Watched) -> None:
    for _ in range(4):
        watched.monitor.step(gradient_norm=torch.tensor(2.5, device="cuda"))
    assert watched.end().state["gradient_norm"] == 2.5


# Torch says once that this mode is a prototype, which is no failure of ours.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_gpu_through_200_steps(watched: Watched) -> None:
    watched.step()
    cuda.set_sync_debug_mode("error")
    try:
        for _ in range(200):
            watched.step()
    finally:
        cuda.set_sync_debug_mode("default")
    assert watched.end().periodic["late_losses"] > 100


def test_no_error_of_ours_is_left_for_the_loops_next_launch(watched: Watched) -> None:
    for _ in range(50):
        cuda._sleep(SLEEP_CYCLES // 20)  # queries find a device that is busy
        watched.step()
    cuda.synchronize()
    assert cuda.cudart().cudaGetErrorString(0)
    assert watched.end().periodic["part_errors"]["device_events"] == 0


def test_a_captured_step_holds_no_event_of_ours(watched: Watched) -> None:
    watched.step()
    cuda.synchronize()
    graph, out = cuda.CUDAGraph(), torch.zeros((), device="cuda")
    with cuda.graph(graph):
        watched.monitor.enter_phase("forward")
        out += 1
        watched.monitor.enter_phase("optimizer")
    for _ in range(3):
        graph.replay()
        watched.monitor.step()
    page = watched.end()
    assert float(out) == 3
    assert page.periodic["part_errors"]["device_events"] == 0


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model_trains_as_it_does_unwatched(root: Path, mode: str) -> None:
    losses: list[list[float]] = []
    for is_watched in (False, True):
        torch.manual_seed(0)
        model: Any = torch.compile(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()), mode=mode)
        extra = {} if is_watched else {"LOCKSTEP": "off"}
        watched = Watched(root, model, **extra)
        losses.append([float(watched.step()) for _ in range(6)])
        watched.monitor.close()
    assert losses[0] == losses[1]


def test_autocast_and_a_scaler_are_watched(watched: Watched) -> None:
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(20):
        with torch.autocast("cuda", torch.float16):
            loss = watched.model(watched.batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(watched.optimizer)
        scaler.update()
        watched.optimizer.zero_grad()
        watched.monitor.step(loss=loss)
    page = watched.end()
    assert page.periodic["device_steps"] > 0
    assert sum(page.periodic["part_errors"].values()) == 0


def test_a_loop_in_a_stream_of_its_own_is_timed_there(watched: Watched) -> None:
    with cuda.stream(cuda.Stream()):
        for _ in range(40):
            watched.step()
        page = watched.end()
    assert page.periodic["device_steps"] > 0
    assert page.periodic["part_errors"]["device_events"] == 0


def test_events_are_made_once_and_memory_does_not_grow(watched: Watched) -> None:
    for _ in range(200):
        watched.step()
    cuda.synchronize()
    before = cuda.mem_get_info()[0]
    for _ in range(2000):
        watched.step()
    cuda.synchronize()
    assert before - cuda.mem_get_info()[0] < 8 << 20


def test_the_recorder_says_whether_the_device_has_work(watched: Watched) -> None:
    watched.step()
    cuda._sleep(SLEEP_CYCLES * 10)
    assert watched.monitor.recorder.is_device_busy() is True
    cuda.synchronize()
    assert watched.monitor.recorder.is_device_busy() is False


def test_short_steps_are_thinned_out_and_the_page_says_so(watched: Watched) -> None:
    for _ in range(500):
        watched.step()
    page = watched.end()
    assert (page.periodic["device_stride"] or 1) > 1
    assert page.state["settled_steps"] == page.state["steps"]


def test_memory_of_the_device_is_in_the_page(watched: Watched) -> None:
    watched.step()
    page = watched.end()
    assert page.periodic["device_allocated_bytes"] > 4 * WIDTH * WIDTH
    assert page.periodic["device_peak_bytes"] >= page.periodic["device_allocated_bytes"]


def test_the_pages_gpu_is_the_drivers(watched: Watched) -> None:
    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    uuids = [
        nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(nvml.nvmlDeviceGetCount())
    ]
    assert watched.end().identity["gpu_uuid"] in uuids


def test_memory_that_runs_out_is_counted_and_raised(watched: Watched) -> None:
    with pytest.raises(torch.OutOfMemoryError), watched.monitor.phase("forward"):
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    assert watched.end().periodic["out_of_memory"] >= 1


ASSERTION = """
import sys, torch, lockstep
from pathlib import Path
monitor = lockstep.attach(root=Path(sys.argv[1]), environment={"LOCKSTEP_JOB_ID": "job-a"})
for step in range(9):
    index = torch.tensor([99999 if step == 5 else 1], device="cuda")
    loss = torch.nn.functional.embedding(index, torch.randn(10, 4, device="cuda")).mean()
    monitor.step(loss=loss)
torch.cuda.synchronize()
"""


def test_after_an_assertion_on_the_device_the_error_is_the_loops_own(root: Path) -> None:
    ended = run_python(ASSERTION, str(root))
    assert ended.returncode != 0
    assert "device-side assert" in ended.stderr
    assert read_page(page_path(root, "job-a", 0, 0)).state["steps"] >= 5


def test_the_flight_recorder_of_nccl_holds_what_the_rank_has_launched(root: Path) -> None:
    store = f"file://{root}/store"
    dist.init_process_group("nccl", init_method=store, rank=0, world_size=1)
    try:
        watched = Watched(root)
        for _ in range(3):
            dist.all_reduce(torch.ones(8, device="cuda"))
            watched.step()
        dump = query_flight_recorder(socket_path(watched.path))
        watched.monitor.close()
    finally:
        dist.destroy_process_group()
    assert dump is not None
    assert json.loads(dump).get("entries")


def test_the_doctor_finds_the_gpu_and_measures_it(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    command = ["lockstep", "doctor", "--gpu", "--load", "--duration", "1s", "--json", str(output)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode in {0, 1}, ended.stderr
    names = {check["name"] for check in json.loads(output.read_text())["checks"]}
    assert {"NVML fields", "bf16 product", "memory, read and write", "all reduce"} <= names


def test_the_agent_serves_the_gpu(tmp_path: Path) -> None:
    command = ["lockstep", "agent", "--once", "--state", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stdout.splitlines() if line.startswith("lockstep_gpu_up{")]
    assert lines
    assert lines[0].endswith(" 1")
