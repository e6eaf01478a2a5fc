"""Metrics of the activity of a GPU's units: by GPM from Hopper on, by DCGM before."""

from lockstep_catalogue.labels import MIG, OF_GPU, PIPE, STATISTIC
from lockstep_catalogue.metric import Metric

# GPM takes two samples at least 100 ms apart, and no lock on the profiler, so Nsight can run beside
# it.
GPU_SM_ACTIVE = Metric(
    name="lockstep_gpu_sm_active_ratio",
    labels=OF_GPU,
    help="Share of time, over all multiprocessors, in which one had work.",
    source="GPM 2, DCGM 1002",
)
GPU_SM_ACTIVE_WINDOW = Metric(
    name="lockstep_gpu_sm_active_window_ratio",
    labels=(*OF_GPU, STATISTIC),
    help="Activity of the multiprocessors over the agent's window, from its ticks.",
    source="GPM 2 of each tick",
)
GPU_SM_OCCUPANCY = Metric(
    name="lockstep_gpu_sm_occupancy_ratio",
    labels=OF_GPU,
    help="Warps resident on the multiprocessors as a share of the most that fit.",
    source="GPM 3, DCGM 1003",
)
GPU_TENSOR_ACTIVE = Metric(
    name="lockstep_gpu_tensor_active_ratio",
    labels=(*OF_GPU, PIPE),
    help="Share of time in which the tensor pipes worked.",
    source="GPM 5 to 7 and 9, DCGM 1004, 1013 to 1015",
)
GPU_DRAM_ACTIVE = Metric(
    name="lockstep_gpu_dram_active_ratio",
    labels=OF_GPU,
    help="Share of time in which the memory moved data.",
    source="GPM 10, DCGM 1005",
)
GPU_GRAPHICS_ACTIVE = Metric(
    name="lockstep_gpu_graphics_engine_active_ratio",
    labels=OF_GPU,
    help="Share of time in which the graphics and compute engine worked.",
    source="GPM 1, DCGM 1001",
)
# nvmlDeviceGetUtilizationRates has no data on an instance.
GPU_MIG_SM_ACTIVE = Metric(
    name="lockstep_gpu_mig_sm_active_ratio",
    labels=(*OF_GPU, MIG),
    help="Share of time in which a multiprocessor of an instance of a split GPU had work.",
    source="GPM 2 of the instance",
)
