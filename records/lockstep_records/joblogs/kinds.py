"""Kinds of lines in a job's log that say something: one table, searched from top to bottom.

A line is of the first kind whose pattern it matches. ``literals`` are the bytes without which the
pattern cannot match; they find the few lines worth a regular expression among gigabytes.
"""

import re
from dataclasses import dataclass
from enum import IntEnum

from lockstep_catalogue.vocabulary import FailureClass, Verdict


class Tier(IntEnum):
    """How near to the root cause a line is; a lower tier explains the higher ones."""

    CAUSE = 1
    """Names a cause by itself."""
    CRASH = 2
    """A rank's own failure with no better name."""
    NETWORK = 3
    """The network or its software complains: a cause where nobody died of anything else."""
    VICTIM = 4
    """Printed by ranks that waited for another one."""
    ENDING = 5
    """Somebody ended the job, or reports how it ended."""
    MILESTONE = 6
    """Progress, success, sizes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of line.

    Attributes:
        blame: whom it accuses when few ranks print it, a group being the node. A kind that accuses
            the workload or nobody does so however few they are.
        says: the cause in a few words, for a sentence.
        literals: bytes of which a matching line holds at least one.
    """

    name: str
    tier: Tier
    failure_class: FailureClass
    blame: Verdict
    says: str
    literals: tuple[str, ...]
    pattern: re.Pattern[str]


def _kind(  # noqa: PLR0917  # a row of the table, in the order of its columns
    name: str,
    tier: Tier,
    failure_class: FailureClass,
    blame: Verdict,
    says: str,
    literals: str,
    pattern: str,
) -> Kind:
    return Kind(
        name, tier, failure_class, blame, says, tuple(literals.split("|")), re.compile(pattern)
    )


_C, _X, _N, _V, _E, _M = Tier
# ruff: noqa: E501  # a row stands on one line, as its pattern is read
# fmt: off
KINDS: tuple[Kind, ...] = (
    # --- MLPerf's own log
    _kind("mllog", _M, "unknown", "nobody", "", ":::MLLOG", r":::MLLOG\s*(\{.*)"),
    # --- how the resource manager ended it
    _kind("time_limit", _E, "user", "nobody", "the time limit",
          "DUE TO TIME LIMIT|time limit|walltime|TERM_RUNLIMIT|DeadlineExceeded",
          r"(?i)DUE TO TIME LIMIT|exceeded (?:its |the )?(?:wall ?)?time limit|job killed: walltime|TERM_RUNLIMIT|DeadlineExceeded"),
    _kind("preempted", _E, "unknown", "nobody", "preemption",
          "DUE TO PREEMPTION|DUE TO JOB REQUEUE|preempt|Preempt|Terminated: spot|reclaim",
          r"DUE TO (?:PREEMPTION|JOB REQUEUE)|(?i:\bjob (?:was )?preempted\b|received preemption (?:signal|notice)|spot instance (?:interruption|reclaim))"),
    _kind("node_failure", _C, "infra", "group", "a node failed",
          "Node failure on|DUE TO NODE FAIL|DUE TO NODE_FAIL|NODE_FAIL|not responding",
          r"Node failure on (?P<node>[\w.\[\],-]+)|ON (?P<node2>\S+) CANCELLED AT \S+ DUE TO NODE.FAIL|DUE TO NODE.FAIL|State=NODE_FAIL|[Nn]odes? (?P<node3>[\w.-]+) (?:is |are )?not responding"),
    _kind("host_oom", _C, "user", "rank", "the host ran out of memory",
          "oom-kill|oom_kill|OOM Killed|Out Of Memory|Out of memory: Kill|OOMKilled|Cannot allocate memory|can't allocate memory|bad_alloc|MemoryError|killed by signal: Killed",
          r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,-]+): Out Of Memory|oom[-_]kill|OOM Killed|Out of memory: Kill|OOMKilled|\[Errno 12\]|Cannot allocate memory|can't allocate memory|std::bad_alloc|^(?:numpy\S*\.)?_?(?:Array)?MemoryError\b|is killed by signal: Killed"),
    _kind("slurm_cancelled", _E, "unknown", "nobody", "the job was cancelled",
          "CANCELLED AT", r"\*\*\* (?P<what>JOB|STEP) \S+ (?:ON (?P<node>\S+) )?CANCELLED AT"),
    _kind("srun_exit", _E, "unknown", "rank", "a task ended with an error",
          "srun: error", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$"),
    _kind("torchrun_signal", _E, "unknown", "nobody", "the launcher was told to stop",
          "death signal|SignalException", r"Received (?:Signals\.)?(?P<signal>\w+) death signal|SignalException: Process \d+ got signal: (?P<signal2>\d+)"),
    _kind("interrupted", _E, "unknown", "nobody", "somebody interrupted it",
          "KeyboardInterrupt", r"^KeyboardInterrupt\b"),
    _kind("root_cause", _E, "unknown", "rank", "", "Root Cause (first observed", r"^Root Cause \(first observed failure\)"),
    _kind("summary_rank", _E, "unknown", "rank", "", "(local_rank:", r"^\s*rank\s*: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)"),
    _kind("summary_host", _E, "unknown", "rank", "", "host      :", r"^\s*host\s*: (?P<node>\S+)"),
    _kind("summary_exit", _E, "unknown", "rank", "", "exitcode  :", r"^\s*exitcode\s*: (?P<code>-?\d+) \(pid: \d+\)"),
    _kind("agent_exit", _E, "unknown", "rank", "", "failed (exitcode:|exits with return code", r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: \d+|exits with return code = (?P<code2>-?\d+)"),
    _kind("mpi_exit", _E, "unknown", "rank", "a rank ended with an error", "process rank|MPI_ABORT", r"process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S+) exited on signal (?P<signal>\d+)|MPI_ABORT was invoked on rank (?P<rank2>\d+)"),
    _kind("restart", _M, "unknown", "nobody", "", "Restarting worker group|restart_count=|will restart worker group", r"Restarting worker group|restart_count=[1-9]|will restart worker group"),
    _kind("preempted_exit", _E, "unknown", "nobody", "preemption", "exit code 75", r"[Ee]xited with exit code 75\b"),
    # --- hardware
    _kind("xid", _C, "infra", "group", "the driver reported an error", "Xid (", r"Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\): (?P<xid>\d+)"),
    _kind("gpu_fault", _C, "infra", "rank", "the GPU failed",
          "ECC error|fallen off the bus|ECC_UNCORRECTABLE|ECCUncorrectable|Unable to determine the device handle|busy or unavailable|NVLink error|hardware error|CUDA-capable device is detected|unknown error",
          r"(?i)uncorrectable ECC error|ECC_?UNCORRECTABLE|fallen off the bus|Unable to determine the device handle|devices? is/are busy or unavailable|uncorrectable NVLink error|CUDA error: (?:hardware|unknown) error|no CUDA-capable device is detected"),
    # --- memory of the GPU
    _kind("gpu_oom", _C, "user", "rank", "the GPU ran out of memory",
          "out of memory|OutOfMemoryError|ALLOC_FAILED|MemoryAllocation",
          r"(?:CUDA|HIP|XPU|NPU) out of memory|OutOfMemoryError|CUDA(?: driver)? error: out of memory|cuda runtime error \(2\)|ALLOC_FAILED|cudaErrorMemoryAllocation"),
    # --- the job was started wrong
    _kind("port_in_use", _C, "user", "workload", "its port was in use",
          "ddress already in use|EADDRINUSE", r"EADDRINUSE|[Aa]ddress already in use"),
    _kind("rendezvous", _C, "unknown", "workload", "the ranks did not find each other",
          "Rendezvous|DistStoreError|clients joined|client socket has|Name or service not known|name resolution|No route to host",
          r"Rendezvous(?:Timeout|Connection|Closed|State)\w*Error|DistStoreError|clients joined|client socket has (?:timed out|failed to connect)|Name or service not known|failure in name resolution|No route to host"),
    _kind("wrong_topology", _C, "user", "workload", "ranks, world size or devices do not fit",
          "world size|world_size|WORLD_SIZE|divisible|device ordinal|Duplicate GPU|num_processes|invalid rank",
          r"(?i)^(?:\w+\.)*\w*(?:Error|Exception)\b.*(?:world[_ ]size|divisible)|invalid device ordinal|Duplicate GPU detected|world[_ ]size .{0,60}(?:not (?:divisible|equal|match)|mismatch|does not)|not divisible by .{0,60}(?:parallel|world)"),
    _kind("collective_mismatch", _C, "user", "workload", "ranks called different collectives",
          "mismatch between collectives", r"Detected mismatch between collectives"),
    _kind("missing_module", _C, "user", "workload", "a module could not be imported",
          "ModuleNotFoundError|ImportError", r"^(?:ModuleNotFoundError|ImportError)\b"),
    _kind("bad_arguments", _C, "user", "workload", "it was started with arguments that do not fit",
          "error: |errors.", r"^\S+: error: (?:unrecognized arguments|the following arguments are required|argument \S+: )|(?:omegaconf|hydra)\.errors\.\w+"),
    # --- storage
    _kind("disk_full", _C, "infra", "nobody", "the disk was full",
          "No space left|quota exceeded|ENOSPC|Errno 28|Errno 122", r"No space left on device|[Qq]uota exceeded|ENOSPC|\[Errno (?:28|122)\]"),
    _kind("io_error", _C, "infra", "nobody", "the file system failed",
          "Stale file handle|Input/output error|Errno 5]|endpoint is not connected|Read-only file system|endpoint shutdown",
          r"Stale file handle|Input/output error|\[Errno 5\]|Transport endpoint is not connected|Cannot send after transport endpoint|Read-only file system"),
    _kind("checkpoint_corrupt", _C, "infra", "nobody", "a checkpoint could not be read",
          "PytorchStreamReader|central directory|orrupt|checksum|SafetensorError|unexpected EOF|was truncated|invalid header or archive|invalid load key",
          r"PytorchStreamReader failed|failed finding central directory|(?i:check ?point\S* .{0,80}(?:corrupt|checksum|truncat|incomplete)|corrupt\w* .{0,60}check ?point)|(?:Header\w+|Incomplete\w*|SafetensorError).{0,40}deserializ|SafetensorError|unexpected EOF, expected|pickle data was truncated|header or archive is corrupted|invalid load key"),
    _kind("checkpoint_mismatch", _C, "user", "workload", "the checkpoint does not fit the model",
          "loading state_dict", r"Error\(s\) in loading state_dict"),
    # --- the training itself
    _kind("shape_mismatch", _C, "user", "workload", "shapes do not fit",
          "cannot be multiplied|must match|size mismatch|hape mismatch|is invalid for input|batch_size|ncompatible shape|same size",
          r"^\S*(?:Error|Exception)\b.*(?:shapes cannot be multiplied|must match|(?:size|shape) mismatch|is invalid for input of size|to match target batch_size|incompatible shapes?|same size)"),
    _kind("not_finite", _C, "user", "workload", "the loss was not finite",
          "NaN|nan|Inf|inf|finite|diverged",
          r"(?i)^\S*(?:Error|Exception|Interrupt)\b.*(?:\bnan\b|\binf\b|non-?finite|not finite)|\bloss (?:is|became|has become|was) (?:nan|inf|-inf)\b|\b(?:nan|inf|non-?finite) (?:loss|grad\w*) (?:detected|found|encountered)|found nan in|loss (?:has )?diverged|stopping training.{0,40}\bnan\b"),
    _kind("device_assert", _C, "user", "rank", "an assertion failed on the GPU",
          "device-side assert|Assertion `", r"device-side assert triggered"),
    _kind("illegal_access", _C, "unknown", "rank", "a kernel touched memory that is not its own",
          "illegal memory access|misaligned address|illegal instruction was|unspecified launch", r"CUDA error: (?:an illegal|misaligned|unspecified launch)"),
    # --- crashes
    _kind("segfault", _X, "unknown", "rank", "segmentation fault",
          "egmentation fault|SIGSEGV|signal 11", r"[Ss]egmentation fault|Caught signal 11|\(SIGSEGV\)"),
    _kind("bus_error", _X, "unknown", "rank", "bus error", "Bus error|SIGBUS", r"Bus error|\(SIGBUS\)|signal: Bus"),
    # --- network
    _kind("ib_error", _N, "infra", "nobody", "the fabric reported an error",
          "Got completion|Got async event|link down|ibv_", r"NET/IB ?: ?Got (?:completion|async).*(?:error|port|fatal|status)|Call to ibv_\w+ failed"),
    _kind("nccl_system", _N, "infra", "nobody", "NCCL failed in a system call",
          "ncclSystemError|unhandled system error|ncclInternalError|unhandled cuda error|ncclUnhandledCudaError",
          r"ncclSystemError|unhandled system error|ncclInternalError|ncclUnhandledCudaError|unhandled cuda error"),
    # --- victims
    _kind("nccl_timeout", _V, "unknown", "nobody", "a collective timed out",
          "caught collective operation timeout|Watchdog caught", r"Watchdog caught collective operation timeout: WorkNCCL\((?P<work>[^)]*(?:\([^)]*\)[^)]*)*)\)(?: ran for (?P<ms>\d+) milliseconds)?"),
    _kind("nccl_state", _M, "unknown", "nobody", "", "last enqueued NCCL work", r"last enqueued NCCL work: (?P<enqueued>-?\d+), last completed NCCL work: (?P<completed>-?\d+)"),
    _kind("nccl_remote", _V, "unknown", "nobody", "a connection of NCCL was closed by the other side",
          "ncclRemoteError|remote process exited|Connection closed by remote peer|Broken pipe|onnection reset by peer|NCCL communicator was aborted|NCCL WARN",
          r"ncclRemoteError|remote process exited|closed by remote peer|Broken pipe|[Cc]onnection reset by peer|NCCL communicator was aborted|socketProgress|NCCL WARN .*(?:Call to (?:recv|send|connect)|[Aa]sync error|Connect to)"),
    _kind("gloo_closed", _V, "unknown", "nobody", "a connection of gloo was closed by the other side",
          "gloo/transport|Connection closed by peer|Gloo connectFullMesh", r"gloo/transport/.*(?:Connection closed|error|[Tt]imed out|reset)|Connection closed by peer|Gloo connectFullMesh"),
    _kind("store_lost", _V, "unknown", "nobody", "the store of the ranks went away",
          "TCPStore|Socket Timeout|heartbeat|DistNetworkError", r"(?:TCPStore|DistNetworkError|DistStoreError).*(?:[Tt]imed? ?out|[Bb]roken|reset|fail|recvValue)|Socket Timeout|heartbeat monitor.*(?:timed out|stuck)"),
    _kind("taken_down", _V, "unknown", "nobody", "the watchdog ended the process",
          "taking the entire process down|watchdog thread terminated|DistBackendError|c10::DistBackend", r"taking the entire process down|watchdog thread terminated|DistBackendError|SIGABRT"),
    # --- success, sizes
    _kind("success", _M, "unknown", "nobody", "",
          "raining |after training is done|stopped: `max_|ret_code=0|raining_complete|run finished|Run finished|train_runtime|rc=0",
          r"(?i)\btraining (?:has )?(?:is |was )?(?:completed?|finished|done|succeeded)(?: successfully)?\b(?! (?:step|epoch|iter|batch|\d+ of))|after training is done|`?Trainer\.fit`? stopped: `max_(?:steps|epochs)|'train_runtime':|\brun finished successfully"),
    _kind("world_size", _M, "unknown", "nobody", "",
          "MEMBER:|world_size|world size|WORLD_SIZE|nranks|nRanks", r"MEMBER: \d+/(?P<a>\d+)|\bworld[_ ]size['\"]?(?: is)?\s*[:=]?\s*(?P<b>\d+)\b|WORLD_SIZE=(?P<c>\d+)|\bn[rR]anks (?P<d>\d+)\b"),
    # --- progress; ``step`` counts, ``seconds`` or ``ms`` is what a step took
    _kind("progress", _M, "unknown", "nobody", "", "iteration", r"\biteration\s+(?P<step>\d+)/\s*(?P<total>\d+)\s*\|(?:.*?elapsed time per iteration \(ms\): (?P<ms>[\d.]+))?"),
    _kind("progress", _M, "unknown", "nobody", "", "step|Step|iter", r"(?i)^.{0,160}?\b(?:global_|train(?:ing)?[_ ])?(?:steps?|iter(?:ation)?s?)['\"]?\s*[:=#]?\s*\[?(?P<step>\d{1,12})(?:\s*(?:/|of)\s*(?P<total>\d+))?\b(?=.{0,400}?(?:loss|\blr\b|tps|tokens|time|acc|grad|samples|it/s|s/it|throughput))(?:.*?(?:iter time \(s\)|step[_ ]time(?: \(s\))?|train_step_timing in s|sec(?:onds)?[/_ ]?(?:per)?[/_ ]?(?:step|iter))['\"]?\s*[:=]\s*(?P<seconds>\d[\d.]*)|.*?\b(?:step[_ ])?time(?:_ms)?\s*[:=]?\s*(?P<ms>\d[\d.]*)\s*ms\b)?"),
    _kind("progress", _M, "unknown", "nobody", "", "it/s|s/it", r"\|\s*(?P<step>\d+)/(?P<total>\d+) \[[\d:]+<[\d:?]+"),
    _kind("progress", _M, "unknown", "nobody", "", "'loss'", r"\{'loss': [\d.]+"),
    # --- Python
    _kind("traceback", _M, "unknown", "nobody", "", "Traceback (most", r"Traceback \(most recent call last\)"),
    _kind("exception", _X, "user", "rank", "", "Error|Exception|StopIteration", r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|StopIteration))(?::\s*(?P<message>.*))?$"),
)
DATA_ERROR = _kind("data_error", _X, "user", "rank", "the data could not be read", "", "(?!)")
"""What an exception becomes when its traceback shows that data was being read."""
BY_NAME = {kind.name: kind for kind in (DATA_ERROR, *reversed(KINDS))}

SOFTWARE_XIDS = frozenset({13, 31, 32, 43, 45, 68, 69})
"""Xids that the application causes, or that only report its end."""
LAUNCHER_ERRORS = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException", "SignalException", "SystemExit", "BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError", "EOFError: None")
"""Exceptions that only pass on the failure of another process."""
DATA_TRACES = re.compile(r"(?i)data|shard|h5py|hdf5|parquet|arrow|tokeni|loader|webdataset|corpus|\.jsonl?\b|\.tar\b|lmdb")
"""Words in a traceback of code that reads data."""
DATA_ERRORS = frozenset({"KeyError", "FileNotFoundError", "IndexError", "UnicodeDecodeError", "JSONDecodeError", "ArrowInvalid", "UnpicklingError", "EOFError", "StopIteration", "OSError", "ReadError", "ValueError", "ParserError", "UnidentifiedImageError", "BadZipFile"})
