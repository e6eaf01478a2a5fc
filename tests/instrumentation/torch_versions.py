"""Parts that the oldest supported torch lacks, for the tests that need them."""

import pytest
import torch

IS_TORCH_2_7 = torch.__version__.startswith("2.7.")

without_flight_recorder = pytest.mark.skipif(
    IS_TORCH_2_7, reason="the worker server of torch 2.7 has no Flight Recorder of gloo"
)
hangs_in_pipelines = pytest.mark.skipif(
    IS_TORCH_2_7,
    # A batch of transfers is started by batch_isend_irecv(...).pop(): only the last is waited for.
    reason="a pipeline over gloo hangs in torch 2.7, without Lockstep too",
)
needs_async_save_of_one_process = pytest.mark.skipif(
    IS_TORCH_2_7, reason="async_save of torch 2.7 needs a process group"
)
