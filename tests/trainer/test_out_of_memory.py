import numpy as np
import pytest
import torch

from lockstep.monitor.out_of_memory import OutOfMemory, out_of_memory_in


def error_of(text: str) -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(text)


def test_memory_of_the_host_that_runs_out_is_told_with_what_was_asked() -> None:
    with pytest.raises(RuntimeError) as torch_said:
        torch.empty(10**15)
    with pytest.raises(MemoryError) as numpy_said:
        np.empty(10**15)
    with pytest.raises(MemoryError) as python_said:
        bytearray(10**18)
    assert out_of_memory_in(torch_said.value) == OutOfMemory(memory="host", requested_bytes=4 * 10**15)
    numpy_told = out_of_memory_in(numpy_said.value)
    assert numpy_told is not None
    assert numpy_told.requested_bytes == pytest.approx(8 * 10**15, rel=0.01)
    assert str(out_of_memory_in(python_said.value)) == "out of host memory"


def test_memory_of_a_gpu_that_runs_out_is_told_with_what_was_asked() -> None:
    told = out_of_memory_in(error_of("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"))
    assert str(told) == f"out of GPU memory, asking for {20 << 30} bytes"


def test_any_other_error_is_not_taken_for_it() -> None:
    assert out_of_memory_in(RuntimeError("shapes do not fit")) is None
    assert out_of_memory_in(ValueError("not enough memory")) is None
