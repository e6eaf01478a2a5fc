"""The truth about each made log in ``tests/fixtures/joblogs``; written by hand, line by line."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "fixtures/joblogs"


@dataclass(frozen=True)
class Truth:
    outcome: str
    blame: str
    cause: str | None
    failure_class: str | None = None
    ranks: tuple[int, ...] = ()
    group: str | None = None


def failed(
    blame: str, cause: str, failure_class: str, *ranks: int, group: str | None = None
) -> Truth:
    return Truth("failed", blame, cause, failure_class, ranks, group)


CANCELLED = Truth("cancelled", "nobody", "cancelled")
PREEMPTED = Truth("preempted", "nobody", "preemption")
NO_VERDICT = Truth("unknown", "unknown", None)
SUCCEEDED = Truth("succeeded", "nobody", None)
TRUTHS = {
    "all_time_out": failed("unknown", "nccl_timeout", "unknown"),
    "bus_error": failed("rank", "bus_error", "unknown", 289),
    "checkpoint_corrupt": failed("nobody", "checkpoint_corrupt", "infra"),
    "checkpoint_mismatch": failed("workload", "checkpoint_mismatch", "user"),
    "data_error_everywhere": failed("workload", "data_error", "user"),
    "dataloader_killed": failed("rank", "host_oom", "user", 1),
    "deepspeed_exit": failed("unknown", "killed", "unknown"),
    "disk_full": failed("nobody", "disk_full", "infra"),
    "duplicate_gpu": failed("workload", "wrong_topology", "user"),
    "ecc": failed("rank", "gpu_fault", "infra", 11),
    "finished": SUCCEEDED,
    "finished_then_teardown_crash": SUCCEEDED,
    "gloo_victims": failed("rank", "exception", "user", 2),
    "gpu_oom_everywhere": failed("workload", "gpu_oom", "user"),
    "gpu_oom_one_rank_others_time_out": failed("rank", "gpu_oom", "user", 3),
    "gpu_oom_without_labels": failed("rank", "gpu_oom", "user", 5),
    "handled_traceback": NO_VERDICT,
    "hang_until_time_limit": failed("rank", "hang", "unknown", 6),
    "host_oom_slurm": failed("rank", "host_oom", "user", 5),
    "ib_error": failed("nobody", "ib_error", "infra"),
    "interrupted": CANCELLED,
    "killed_rank": failed("rank", "killed", "unknown", 2),
    "launch_error_exit_2": failed("workload", "bad_arguments", "user"),
    "mismatched_collectives": failed("workload", "collective_mismatch", "user"),
    "missing_shard_one_rank": failed("rank", "data_error", "user", 6),
    "mlperf_aborted": Truth("not_converged", "workload", "not_converged"),
    "module_missing": failed("workload", "missing_module", "user"),
    "mpi_killed": failed("rank", "killed", "unknown", 3),
    "mpirun_labels": failed("rank", "illegal_access", "unknown", 6),
    "nan_loss": failed("workload", "not_finite", "user"),
    "no_words": NO_VERDICT,
    "node_failure": failed("group", "node_failure", "infra", group="gn-0417"),
    "one_rank_behind": failed("rank", "hang", "unknown", 5),
    "only_remote_errors": failed("unknown", "nccl_remote", "unknown"),
    "pbs_walltime": Truth("time_limit", "nobody", "time_limit"),
    "port_in_use": failed("workload", "port_in_use", "user"),
    "preempted_exit_75": PREEMPTED,
    "preempted_slurm": PREEMPTED,
    "progress_bar": failed("rank", "gpu_oom", "user", 0),
    "rendezvous_missing_clients": failed("workload", "rendezvous", "unknown"),
    "rendezvous_timeout": failed("workload", "rendezvous", "unknown"),
    "requeued": PREEMPTED,
    "restarted_and_finished": SUCCEEDED,
    "restarted_then_another_cause": failed("rank", "gpu_fault", "infra", 2),
    "scancelled": CANCELLED,
    "segfault_one_rank": failed("rank", "segfault", "unknown", 9),
    "shape_mismatch": failed("workload", "shape_mismatch", "user"),
    "silent_end": NO_VERDICT,
    "srun_torchrun_nodes": failed("rank", "gpu_oom", "user", 10),
    "stale_file_handle": failed("nobody", "io_error", "infra"),
    "time_limit": Truth("time_limit", "nobody", "time_limit"),
    "torchelastic_sigterm": CANCELLED,
    "torchrun_summary_only": failed("rank", "exit", "unknown", 1),
    "wrong_world_size": failed("workload", "wrong_topology", "user"),
    "xid_in_kernel_log": failed("rank", "xid", "infra", 4),
}
