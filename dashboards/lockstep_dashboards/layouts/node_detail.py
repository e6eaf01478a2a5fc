"""Closed rows of the node board: power and memory in detail, split GPUs."""

from lockstep_catalogue import gpu, gpu_activity, gpu_power
from lockstep_catalogue.labels import (
    CUDA,
    DOMAIN,
    GPU,
    LIMIT,
    MIG,
    MIG_UUID,
    STATISTIC,
    THRESHOLD,
    THROTTLE,
    VERSION,
)
from lockstep_catalogue.promql import eq
from lockstep_dashboards.layouts.node_errors import gpu_columns
from lockstep_dashboards.layouts.node_state import (
    OF_GPUS,
    OF_NODE,
    ON_REQUEST,
    per_gpu,
    rate_per_gpu,
)
from lockstep_dashboards.panel import Row
from lockstep_dashboards.selection import above_zero
from lockstep_dashboards.series_panels import column, table, time_series

_NOT_SPLIT = "a node without split GPUs has none"
_MEAN = (eq(STATISTIC, "mean"),)

POWER = Row(
    title="Power, clocks and temperature in detail",
    collapsed=True,
    panels=(
        time_series(
            gpu_power.GPU_POWER_WINDOW,
            per_gpu(gpu_power.GPU_POWER_WINDOW, where=(eq(STATISTIC, "max"),)),
            title="Highest power in the window",
            good="below the limit.",
            otherwise="short peaks at the limit are normal, lasting ones throttle.",
            width=8,
        ),
        time_series(
            gpu_power.GPU_UTILIZATION_WINDOW,
            per_gpu(gpu_power.GPU_UTILIZATION_WINDOW, where=_MEAN),
            title="Busy, mean of the window",
            good="steady.",
            otherwise="saw teeth are waits for data or checkpoints.",
            width=8,
        ),
        time_series(
            gpu_power.GPU_CLOCK_WINDOW,
            per_gpu(gpu_power.GPU_CLOCK_WINDOW, where=(eq(STATISTIC, "min"),)),
            title="Lowest clock in the window",
            good="near the maximum under load.",
            otherwise="dips that no scrape of the clock meets are seen here.",
            width=8,
        ),
        time_series(
            gpu_activity.GPU_SM_ACTIVE_WINDOW,
            per_gpu(gpu_activity.GPU_SM_ACTIVE_WINDOW, where=_MEAN),
            title="SM active, mean of the window",
            good="above 80 %.",
            otherwise="compare with the other nodes of the job.",
            width=8,
        ),
        time_series(
            gpu_power.GPU_ENERGY,
            rate_per_gpu(gpu_power.GPU_ENERGY),
            title="Power by the energy counter",
            per_second=True,
            good="agrees with the power above it.",
            otherwise="the counter misses no peak: trust it.",
            width=8,
        ),
        gpu_columns(
            "Power and state of the GPUs",
            gpu_power.GPU_POWER_AVERAGE,
            (
                (gpu_power.GPU_POWER_AVERAGE, "average power"),
                (gpu_power.GPU_MEMORY_POWER, "of memory"),
                (gpu_power.GPU_MODULE_POWER, "of module"),
                (gpu_power.GPU_PSTATE, "performance state"),
                (gpu_power.GPU_TEMPERATURE_MARGIN, "margin"),
            ),
            "state 0 under load, a margin above 10 degrees.",
            "a GPU that runs hotter than its neighbours is cooled worse.",
        ),
        table(
            gpu_power.GPU_POWER_LIMIT,
            OF_GPUS.gauge("max", gpu_power.GPU_POWER_LIMIT, LIMIT),
            title="Limits of power",
            good="enforced is the default on all GPUs.",
            otherwise="somebody lowered it: `nvidia-smi -pl`.",
            columns=(GPU, LIMIT),
            width=8,
        ),
        table(
            gpu_power.GPU_THROTTLE_ACTIVE,
            above_zero(
                OF_GPUS.by(
                    "max", OF_GPUS.over_range("max", gpu_power.GPU_THROTTLE_ACTIVE), THROTTLE
                )
            ),
            title="Reasons for throttling in the range",
            good="empty, or idle.",
            otherwise="hw_slowdown and hw_power_brake are faults of hardware or supply.",
            columns=(GPU, THROTTLE),
            width=8,
            may_be_empty="a GPU that was never held back has none",
        ),
        table(
            gpu_power.GPU_CLOCK_MAX,
            OF_GPUS.gauge("max", gpu_power.GPU_CLOCK_MAX, DOMAIN),
            title="Highest clocks",
            good="the same on all GPUs of a kind.",
            otherwise="application clocks were set: `nvidia-smi -q -d CLOCK`.",
            columns=(GPU, DOMAIN),
            width=8,
            may_be_empty=ON_REQUEST,
        ),
        table(
            gpu_power.GPU_TEMPERATURE_LIMIT,
            column(
                gpu_power.GPU_TEMPERATURE_LIMIT,
                OF_GPUS.gauge("max", gpu_power.GPU_TEMPERATURE_LIMIT, THRESHOLD),
                "limit",
            ),
            column(
                gpu_power.GPU_TEMPERATURE_LIMIT_MARGIN,
                OF_GPUS.gauge("max", gpu_power.GPU_TEMPERATURE_LIMIT_MARGIN, THRESHOLD),
                "as a margin",
            ),
            title="Temperatures at which the driver acts",
            good="10 degrees above what the sensors show.",
            otherwise="cool the node before the driver slows it down.",
            columns=(GPU, THRESHOLD),
            may_be_empty=ON_REQUEST,
        ),
        table(
            gpu.GPU_DRIVER_INFO,
            OF_NODE.gauge("max", gpu.GPU_DRIVER_INFO, VERSION, CUDA),
            title="Driver",
            good="the version of the other nodes.",
            otherwise="finish the upgrade before the next large job.",
            columns=(VERSION, CUDA),
        ),
    ),
)
MEMORY = Row(
    title="Memory and instances",
    collapsed=True,
    panels=(
        gpu_columns(
            "Memory of the GPUs",
            gpu.GPU_MEMORY_TOTAL,
            (
                (gpu.GPU_MEMORY_TOTAL, "total"),
                (gpu.GPU_MEMORY_FREE, "free"),
                (gpu.GPU_MEMORY_RESERVED, "reserved"),
                (gpu.GPU_BAR1_USED, "BAR1 used"),
                (gpu.GPU_PROCESSES, "processes"),
                (gpu.GPU_UP, "answers"),
            ),
            "alike on all GPUs; one process a rank.",
            "memory that is used without a process: reset the GPU.",
        ),
        time_series(
            gpu.GPU_MEMORY_COPY,
            per_gpu(gpu.GPU_MEMORY_COPY),
            good="below 80 %.",
            otherwise="DRAM active says the same more exactly.",
            width=6,
        ),
        time_series(
            gpu_activity.GPU_SM_OCCUPANCY,
            per_gpu(gpu_activity.GPU_SM_OCCUPANCY),
            good="steady; there is no figure that is good for all kernels.",
            otherwise="a fall after a change of code is a change of kernels.",
            width=6,
        ),
        time_series(
            gpu_activity.GPU_GRAPHICS_ACTIVE,
            per_gpu(gpu_activity.GPU_GRAPHICS_ACTIVE),
            good="near 100 % while a job trains.",
            otherwise="see SM active.",
        ),
        table(
            gpu.GPU_MIG_INFO,
            column(
                gpu.GPU_MIG_INFO, OF_GPUS.gauge("max", gpu.GPU_MIG_INFO, MIG, MIG_UUID), "present"
            ),
            column(
                gpu.GPU_MIG_MEMORY_TOTAL,
                OF_GPUS.gauge("max", gpu.GPU_MIG_MEMORY_TOTAL, MIG),
                "memory",
            ),
            column(
                gpu.GPU_MIG_MEMORY_USED, OF_GPUS.gauge("max", gpu.GPU_MIG_MEMORY_USED, MIG), "used"
            ),
            column(
                gpu_activity.GPU_MIG_SM_ACTIVE,
                OF_GPUS.gauge("max", gpu_activity.GPU_MIG_SM_ACTIVE, MIG),
                "SM active",
            ),
            title="Instances of split GPUs",
            good="as many as were cut, each in use.",
            otherwise="an instance without use can be given back.",
            columns=(GPU, MIG, MIG_UUID),
            may_be_empty=_NOT_SPLIT,
        ),
        table(
            gpu.GPU_MIG_ENABLED,
            OF_GPUS.gauge("max", gpu.GPU_MIG_ENABLED),
            title="Split GPUs",
            good="0 on nodes for training.",
            otherwise="a split GPU cannot run a rank of a large job: `nvidia-smi -mig 0`.",
            columns=(GPU,),
            may_be_empty="kinds of GPU that cannot be split have none",
        ),
    ),
)
