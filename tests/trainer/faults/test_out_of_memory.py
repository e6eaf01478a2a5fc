import numpy as np
import pytest
import torch

from lockstep.monitor.out_of_memory import OutOfMemory, out_of_memory_in


def error_of(text: str) -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(text)


def test_exhausted_host_memory_is_reported_with_the_bytes_asked_for() -> None:
    with pytest.raises(RuntimeError) as torch_error:
        torch.empty(10**15)
    with pytest.raises(MemoryError) as numpy_error:
        np.empty(10**15)
    with pytest.raises(MemoryError) as python_error:
        bytearray(10**18)
    assert out_of_memory_in(torch_error.value) == OutOfMemory(
        memory="host", requested_bytes=4 * 10**15
    )
    of_numpy = out_of_memory_in(numpy_error.value)
    assert of_numpy is not None
    assert of_numpy.requested_bytes == pytest.approx(8 * 10**15, rel=0.01)
    assert str(out_of_memory_in(python_error.value)) == "out of host memory"


def test_exhausted_gpu_memory_is_reported_with_the_bytes_asked_for() -> None:
    reported = out_of_memory_in(
        error_of("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")
    )
    assert str(reported) == f"out of GPU memory, asking for {20 << 30} bytes"


def test_other_errors_are_not_out_of_memory() -> None:
    assert out_of_memory_in(RuntimeError("shapes do not fit")) is None
    assert out_of_memory_in(ValueError("not enough memory")) is None
