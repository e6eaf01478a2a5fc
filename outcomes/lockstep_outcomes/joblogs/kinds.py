"""Kinds of lines in a job's log that say something: one table, searched from top to bottom.

A line is of the first kind whose pattern it matches. ``literals`` are the bytes without which the
pattern cannot match; they find the few lines worth a regular expression among gigabytes.
"""

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from lockstep_catalogue.vocabulary import FailureClass, Verdict


class Tier(IntEnum):
    """What a line proves; a lower tier explains the higher ones."""

    CAUSE = 1
    """Names a cause by itself."""
    CRASH = 2
    """A rank's own failure with no better name, or the last words of its runtime."""
    LOST = 3
    """Names a rank that the others lost, without why."""
    NETWORK = 4
    """The network or its software complains: a cause where nobody died of anything else."""
    VICTIM = 5
    """Says that it ends because of another, or waited for it."""
    WRAPPER = 6
    """Passes on that something failed."""
    ENDING = 7
    """Somebody ended the job, or reports how it ended."""
    MILESTONE = 8
    """Progress, success, sizes, and what nobody understood."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of line.

    Attributes:
        blame: whom it names when few ranks print it, a group being the node. A kind that names the
            workload or nobody does so however few they are.
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


_C, _X, _L, _N, _V, _W, _E, _M = Tier
# ruff: noqa: E501  # a row stands on one line, as its pattern is read
# fmt: off
KINDS: tuple[Kind, ...] = (
    # --- MLPerf's own log
    _kind("mllog", _M, "unknown", "nobody", "", ":::MLLOG", r":::MLLOG\s*(\{.*)"),
    # --- whoever ends because of another says so; a rank that was lost is named
    _kind("peer_lost", _L, "unknown", "rank", "its heartbeat stopped or it came too late", "/task:",
          r"(?:^|[\s,])/job:[\w-]+/replica:\d+/task:(?P<tasks>\d{1,6})(?: has been set to ERROR|:? heartbeat timeout|[\s,]*$)"),
    _kind("watchdog_stuck", _L, "unknown", "rank", "its watchdog stood still in a call of CUDA or NCCL", "watchdog got stuck", r"watchdog got stuck for \d+ seconds"),
    _kind("node_failure", _C, "infra", "group", "a node failed",
          "Node failure on|DUE TO NODE FAIL|DUE TO NODE_FAIL|NODE_FAIL|not responding|been marked dead|Remote daemon: ",
          r"Node failure on (?P<node>[\w.\[\],-]+)|ON (?P<node2>\S+) CANCELLED AT \S+ DUE TO NODE.FAIL|DUE TO NODE.FAIL|State=NODE_FAIL|[Nn]odes? (?P<node3>[\w.-]+) (?:is |are )?not responding|\baddress: (?P<node4>[\w.:-]+).{0,120}been marked dead|^\s*Remote daemon: \S+ on node (?P<node5>\S+)"),
    _kind("peer_ended", _V, "unknown", "nobody", "it ended because of another",
          "Terminating process because|oordination |JaxRuntimeError: |XlaRuntimeError: |ActorDied|ActorError|ActorUnavailable|WorkerCrashed|NodeDied|OwnerDied|actor is dead|actor died|Horovod has been shut|Shutdown barrier|Barrier timed out|peer failed|another rank|PROC_FAILED|keep-alive heartbeat|RendezvousConn|RendezvousClosed|RendezvousState|emote rank|emote Rank|emote worker|emote node|emote task|emote side|ther rank|ther worker|ther node|ther task|ther process|eer rank|eer process|eer node|StartAbort|ollective ops|UnavailableError|Hccl|llreduce|llgather|ll_reduce|ll_gather|educe_scatter",
          r"Terminating process because|Coordination agent is in ERROR|Polled an error from coordination|coordination service (?:agent )?(?:is in error|has stopped|error)|(?:Jax|Xla)RuntimeError: (?:UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL: .{0,200}(?:ncclRemoteError|remote process|[Pp]eer|coordination))|\b(?:ActorDied|RayActor|ActorUnavailable|WorkerCrashed|NodeDied|OwnerDied)Error|The actor (?:is dead|died)|Horovod has been shut down|Shutdown barrier has failed|Barrier timed out|because (?:a |another )?(?:peer|rank|worker|process) (?:has )?(?:failed|died|exited)|\b(?:[Rr]emote|[Pp]eer|[Oo]ther|[Aa]nother) (?:[Rr]ank|worker|process|node|task|side)s?\b.{0,60}?(?:fail|died|exited|closed|gone|lost|abort|did not|has not|timed? ?out|not respond|unreachable)|PROC_FAILED|keep-alive heartbeat to the rendezvous|Rendezvous(?:Connection|Closed|State)\w*Error|StartAbort |Collective ops is aborted|\bUnavailableError\b|^\S*(?:Error|Exception)\b.{0,300}(?:Hccl\w+|(?i:all_?reduce|all_?gather|reduce_?scatter)).{0,40}(?:error code|failed|aborted|timed out)"),
    # --- the launch
    _kind("srun_step", _M, "unknown", "nobody", "", "+ srun ", r"^\++ srun (?P<arguments>.*)"),
    _kind("launch_failure", _C, "user", "workload", "the launcher refused to start it",
          "srun: error: |srun: invalid option|srun: unrecognized|sbatch: error|slurmstepd: error: |Error response from daemon|command not found|manifest |ImagePull|ErrImage|InvalidImageName|pull access denied|FATAL: |exec format error|exec: |enough slots|could not be found|can't open file|executable file|resolve hostname",
          r"srun: error: (?:pyxis|spank|enroot|Invalid |Unrecognized |.{0,200}[Ii]nvalid (?:argument|option)|.{0,200}unrecognized option|.{0,200}could not add mount)|srun: (?:fatal|invalid option|unrecognized option)|^sbatch: error|slurmstepd: error: (?:pyxis: (?:could|couldn|fail|no such|image|mount|unable|\[ERROR\]|import|invalid|child)|execve\(\)|.{0,400}No such file or directory$(?<!status failed: No such file or directory)|Unable to (?:change|chdir|execute))|Error response from daemon|: command not found$|manifest (?:unknown|for .* not found)|ImagePullBackOff|ErrImagePull|InvalidImageName|pull access denied|^FATAL: .*(?:image|container|exec|open|loading|not found)|exec format error|exec: \"?\S+: not found|not enough slots|executable (?:file )?(?:could )?not (?:be )?found|can't open file|Could not resolve hostname"),
    _kind("launch_system", _C, "infra", "nobody", "the system could not start it",
          "srun: error: |Launch failed|launch failed|OCI runtime|CreateContainer|RunContainer|FailedScheduling|FailedMount|ORTE|PRTE|mpirun was unable|ssh: connect|Error mounting|error mounting|daemon running",
          r"srun: error: (?:Unable to (?:create|confirm|allocate|contact)|Task launch|Application launch|task \d+ launch failed|.{0,200}[Ll]aunch failed|.{0,200}Communication connection failure|Slurm job)|OCI runtime \w+ failed|(?:Create|Run)ContainerError|CreateContainerConfigError|FailedMount|An? (?:ORTE|PRTE) daemon has unexpectedly failed|mpirun was unable to (?:launch|find|start)|ssh: connect to host|[Ee]rror mounting|Cannot connect to the Docker daemon"),
    # --- how the resource manager ended it
    _kind("time_limit", _E, "user", "nobody", "the time limit",
          "DUE TO TIME LIMIT|time limit|walltime|TERM_RUNLIMIT|DeadlineExceeded",
          r"(?i)DUE TO TIME LIMIT|exceeded (?:its |the )?(?:wall ?)?time limit|job killed: walltime|TERM_RUNLIMIT|DeadlineExceeded"),
    _kind("preempted", _E, "unknown", "nobody", "preemption",
          "DUE TO PREEMPTION|DUE TO JOB REQUEUE|preempt|Preempt|Terminated: spot|reclaim",
          r"DUE TO (?:PREEMPTION|JOB REQUEUE)|(?i:\bjob (?:was )?preempted\b|received preemption (?:signal|notice)|spot instance (?:interruption|reclaim))"),
    _kind("shared_memory", _C, "user", "rank", "its shared memory (/dev/shm) is too small", "signal: Bus error|out of shared memory",
          r"is killed by signal: Bus error|out of shared memory"),
    _kind("host_oom", _C, "user", "rank", "the host ran out of memory",
          "oom-kill|oom_kill|OOM Killed|Out Of Memory|Out of memory: Kill|OOMKilled|Cannot allocate memory|can't allocate memory|not enough memory|bad_alloc|MemoryError|killed by signal: Killed|memory pressure|running low on memory|Memory on the node|ObjectStoreFull|OutOfMemoryError|OUT_OF_HOST_MEMORY|by allocator cpu|RESOURCE_EXHAUSTED|TERM_MEMLIMIT",
          r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,-]+): Out Of Memory|oom[-_]kill|OOM Killed|Out of memory: Kill|OOMKilled|\[Errno 12\]|Cannot allocate memory|can't allocate memory|DefaultCPUAllocator: not enough memory|std::bad_alloc|^(?:numpy\S*\.)?_?(?:Array)?MemoryError\b|is killed by signal: Killed|\b[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure.{0,200}IP: (?P<node2>[\d.:a-f]+)|Memory on the node \(IP: (?P<node3>[\d.:a-f]+)|node running low on memory|ray\.exceptions\.OutOfMemoryError|ObjectStoreFullError|OUT_OF_HOST_MEMORY|java\.lang\.OutOfMemoryError|OOM when allocating .{0,200} by allocator cpu|RESOURCE_EXHAUSTED: .{0,200}\bon host\b|TERM_MEMLIMIT"),
    _kind("slurm_cancelled", _E, "unknown", "nobody", "the job was cancelled",
          "CANCELLED AT", r"\*\*\* (?P<what>JOB|STEP) \S+ (?:ON (?P<node>\S+) )?CANCELLED AT"),
    _kind("srun_exit", _E, "unknown", "rank", "a task ended with an error",
          "srun: error", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$"),
    _kind("torchrun_signal", _E, "unknown", "nobody", "the launcher received a signal to stop",
          "death signal|SignalException", r"Received (?:Signals\.)?(?P<signal>\w+) death signal|SignalException: Process \d+ got signal: (?P<signal2>\d{1,3})\b"),
    _kind("interrupted", _E, "unknown", "nobody", "somebody interrupted it",
          "KeyboardInterrupt|by user|TERM_OWNER|TERM_ADMIN|^C|^Z|^\\|\x03|\x1a|\x1c", r"^KeyboardInterrupt\b|^TERM_(?:OWNER|ADMIN)\b|\b(?:stopped|interrupted|cancelled) by user\b|^[^\w^]{0,8}(?:\^[CZ\\]|[\x03\x1a\x1c])+(?:\s*$|(?=[A-Z][a-z]|W\d{4}))"),
    _kind("root_cause", _E, "unknown", "rank", "", "Root Cause (first observed|The first process to do so", r"^Root Cause \(first observed failure\)|The first process to do so was"),
    # a field a line, as launchers print of each process that ended
    _kind("exit_field", _E, "unknown", "rank", "", "(local_rank:|host      :|exitcode  :|RUNNING AT|KILLED BY SIGNAL|EXIT CODE|Exit code: |Process name: [[",
          r"^[=\s]*(?:rank\s{0,20}: (?P<rank>\d{1,6}) \(local_rank: \d|RANK (?P<rank2>\d{1,6}) PID \d+ RUNNING AT (?P<node>\S+)|Process name: \[\[\d+,\d+\],(?P<rank3>\d{1,6})\]|host\s*: (?P<node2>\S+)|(?:exitcode\s{0,20}:|EXIT CODE:|Exit code:) {1,8}(?P<code>-?\d{1,10})\b|KILLED BY SIGNAL: (?P<signal>\d{1,3})\b)"),
    # whom a launcher names, and how that ended
    _kind("exit_line", _E, "unknown", "rank", "", "exited |exited: |died |crashed |terminated with|MPI_ABORT|failed (exitcode|exits with|status failed|Killed",
          r"\b(?i:rank|task|process) (?P<rank>\d{1,6})\b.{0,80}?\b(?:exited|died|crashed|terminated|status failed)\b.{0,400}?\b(?:(?:code|status) (?P<code>-?\d{1,10})\b|signal (?P<signal>\d{1,3}|SIG[A-Z]{2,6})\b|(?P<raised>the following))|MPI_ABORT was invoked on rank (?P<rank2>\d{1,6})\b|failed \(exitcode: (?P<code2>-?\d{1,10})\) local_rank: \d+|exits with return code = (?P<code3>-?\d{1,10})\b|command terminated with exit code (?P<code4>\d{1,3})\b|Child process with PID \d+ terminated with code (?P<code5>-?\d{1,10})\b|^(?:\S{1,200}: line \d+:\s+\d+ )?(?P<killed>Killed)\b(?:\s|$)"),
    _kind("restart", _M, "unknown", "nobody", "", "Restarting worker group|restart_count=|will restart worker group", r"Restarting worker group|restart_count=[1-9]|will restart worker group"),
    _kind("preempted_exit", _E, "unknown", "nobody", "preemption", "exit code 75", r"[Ee]xited with exit code 75\b"),
    # --- hardware
    _kind("xid", _C, "infra", "group", "the driver reported an error", "Xid (", r"Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\): (?P<xid>\d{1,5})\b(?!.{0,80}(?:\bNonfatal\b|caused by previous Xid|\(None\)))"),
    _kind("gpu_fault", _C, "infra", "rank", "the GPU failed",
          "ncorrectable|fallen off the bus|HW_ERR|HW-ERR|ECC_UNCORRECTABLE|ECCUncorrectable|ECCNotCorrectable|Unable to determine the device handle|NVLink error|hardware error|unknown error|DEVICE_LOST|evice lost|evice removed",
          r"(?i)(?<!\b0 )uncorrectable (?:\w+ ){0,2}error\b(?! ?(?:count|total|:? 0))|HW[_-]ERR|ECC_?UNCORRECTABLE|ECCNotCorrectable|fallen off the bus|Unable to determine the device handle|CUDA error: (?:hardware|unknown) error|DEVICE_LOST|\bdevice (?:was )?(?:lost|removed)\b"),
    _kind("gpu_hang", _C, "unknown", "rank", "the GPU hung or its runtime gave up", "HW Exception by GPU|GPU Hang|GPU hang|aborting with error",
          r"HW Exception by GPU|GPU [Hh]ang\b|aborting with error ?: HSA_STATUS_ERROR(?!_(?:MEMORY|EXCEPTION))"),
    _kind("gpu_absent", _C, "infra", "rank", "no device could be acquired", "busy or unavailable|device is detected|acquire failed|NoDevice|NO_DEVICE|GPUs are available",
          r"devices? is/are busy or unavailable|no (?:CUDA|ROCm)-capable device is detected|[Dd]evice acquire failed|ERROR_?NO_?DEVICE|No (?:CUDA|HIP) GPUs are available"),
    # --- memory of the GPU
    _kind("gpu_oom", _C, "user", "rank", "the GPU ran out of memory",
          "out of memory|Out of memory|OutOfMemoryError|ALLOC_FAILED|OUT_OF_MEMORY|OUT_OF_DEVICE_MEMORY|ErrorOutOfMemory|MemoryAllocation|Allocation failed|OUT_OF_RESOURCES|OOM when|to alloc",
          r"(?:CUDA|HIP|XPU|NPU|HPU|GPU|TPU) (?:ran )?out of memory|^(?:torch\.(?:cuda\.|xpu\.)?)?OutOfMemoryError|(?:CUDA|HIP)(?: driver)? error: out of memory|cuda runtime error \(2\)|ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY|(?:cuda|hip)ErrorMemoryAllocation|hipErrorOutOfMemory|OUT_OF_DEVICE_MEMORY|RESOURCE_EXHAUSTED: .{0,80}[Oo]ut of memory|DEVMEM Allocation failed|^(?=.{0,400}(?:GPU|HBM|NPU|TPU|XPU|DEVICE|device|[Cc]uda|CUDA|hip))(?:[\w.]*(?:Error|Exception)\b|.{0,80}\bERROR\b).{0,200}(?:OOM when alloc|[Oo]ut of memory|[Ff]ailed to alloc|OutOfMemory)"),
    # --- the job was started wrong
    _kind("port_in_use", _C, "user", "workload", "its port was in use",
          "ddress already in use|EADDRINUSE", r"EADDRINUSE|[Aa]ddress already in use"),
    _kind("rendezvous", _C, "unknown", "workload", "the ranks did not find each other",
          "RendezvousTimeout|DistStoreError|clients joined|client socket has|Name or service not known|name resolution|No route to host",
          r"RendezvousTimeout\w*Error|DistStoreError|clients joined|client socket has (?:timed out|failed to connect)|Name or service not known|failure in name resolution|No route to host"),
    _kind("wrong_topology", _C, "user", "workload", "ranks, world size or devices do not fit",
          "world size|world_size|WORLD_SIZE|divisible|device ordinal|Duplicate GPU|num_processes|invalid rank",
          r"(?i)^(?:\w+\.)*\w*(?:Error|Exception)\b.*(?:world[_ ]size|divisible)|invalid device ordinal|Duplicate GPU detected|world[_ ]size[ =].{0,60}(?:not (?:divisible|equal|match|agree)|mismatch|does not)|not divisible by .{0,60}(?:parallel|world)"),
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
    _kind("not_finite_locally", _C, "user", "rank", "the loss of one rank was not finite", "in local", r"\bRank (?P<tasks>\d{1,6}): found (?:NaN|Inf)\w* in local "),
    _kind("not_finite", _C, "user", "workload", "the loss was not finite",
          "NaN|Nan|NAN|nan loss|nan grad|topping training|is inf|is -inf|was inf|became inf|become inf|inf loss|inf grad| Inf|finite|diverged| nan|=nan|(nan| inf | inf.| inf,|=inf|(inf| inf\n",
          r"(?i)^\S*(?:Error|Exception|Interrupt)\b.*(?:\bnan\b|\binf\b|non-?finite|not finite)|\bloss (?:is|became|has become|was) (?:nan|inf|-inf)\b|\b(?:nan|inf|non-?finite) (?:loss|grad\w*) (?:detected|found|encountered)|found nan in|loss (?:has )?diverged|stopping training.{0,40}\bnan\b"),
    _kind("device_assert", _C, "user", "rank", "an assertion failed on the GPU",
          "device-side assert|Assertion `", r"device-side assert triggered"),
    _kind("illegal_access", _C, "unknown", "rank", "a kernel touched memory that is not its own",
          "illegal memory access|misaligned address|illegal instruction was|unspecified launch|ILLEGAL_ADDRESS|IllegalAddress|access fault by GPU|APERTURE_VIOLATION|STATUS_ERROR_MEMORY_FAULT|STATUS_ERROR_EXCEPTION",
          r"(?:CUDA|HIP) error: (?:an illegal|misaligned|unspecified launch)|(?:CUDA_ERROR_|(?:cuda|hip)Error)(?:ILLEGAL_|Illegal)(?:ADDRESS|Address)|Memory access fault by GPU|HSA_STATUS_ERROR_(?:MEMORY_APERTURE_VIOLATION|MEMORY_FAULT|EXCEPTION)"),
    _kind("heap_corrupt", _X, "unknown", "rank", "the C library found its heap corrupted",
          "double free|free(): |malloc(): |realloc(): |munmap_chunk|corrupted size|unlinked list|stack smashing",
          r"double free or corruption|\b(?:free|malloc|realloc|munmap_chunk)\(\): |corrupted (?:size vs\.|double-linked)|unlinked list corrupted|stack smashing detected"),
    # --- crashes
    _kind("segfault", _X, "unknown", "rank", "segmentation fault",
          "egmentation fault|SIGSEGV|signal 11|segfault at|general protection", r"[Ss]egmentation fault|Caught signal 11|\(SIGSEGV\)|\]: segfault at [0-9a-f]+ ip |\bgeneral protection(?: fault)? ip:"),
    _kind("bus_error", _X, "unknown", "rank", "bus error", "Bus error|SIGBUS", r"Bus error|\(SIGBUS\)|signal: Bus"),
    # --- network
    _kind("ib_error", _N, "infra", "nobody", "the fabric reported an error",
          "Got completion|Got async event|link down|ibv_|retry count exceeded", r"retry count exceeded on \S+|NET/IB ?: ?Got (?:completion|async).*(?:error|port|fatal|status)|Call to ibv_\w+ failed"),
    _kind("nccl_system", _N, "infra", "nobody", "NCCL failed in a system call",
          "ncclSystemError|unhandled system error|ncclInternalError|unhandled cuda error|ncclUnhandledCudaError",
          r"ncclSystemError|unhandled system error|ncclInternalError|ncclUnhandledCudaError|unhandled cuda error"),
    # --- victims
    _kind("nccl_timeout", _V, "unknown", "nobody", "a collective timed out",
          "caught collective operation timeout|Watchdog caught", r"Watchdog caught collective operation timeout: WorkNCCL\((?P<work>[^()]{0,600}+(?>(?:\([^()]{0,200}+\)[^()]{0,200}+){0,20}))\)(?: ran for (?P<ms>\d+) milliseconds)?"),
    _kind("nccl_state", _M, "unknown", "nobody", "", "last enqueued NCCL work", r"last enqueued NCCL work: (?P<enqueued>-?\d{1,18}), last completed NCCL work: (?P<completed>-?\d+)"),
    _kind("pipe_closed", _V, "unknown", "nobody", "the reader of what it wrote went away", "BrokenPipeError", r"^BrokenPipeError: \[Errno 32\]"),
    _kind("nccl_remote", _V, "unknown", "nobody", "a connection of NCCL was closed by the other side",
          "ncclRemoteError|remote process exit|Connection closed by remote peer|Broken pipe|onnection reset by peer|NCCL communicator was aborted|NCCL WARN",
          r"ncclRemoteError|remote process exit(?:ed|ing)|closed by remote peer|Broken pipe|[Cc]onnection reset by peer|NCCL communicator was aborted|socketProgress|NCCL WARN .{0,200}(?:Call to (?:recv|send|connect)|[Aa]sync error|Connect to)"),
    _kind("gloo_closed", _V, "unknown", "nobody", "a connection of gloo or RPC was closed by the other side",
          "gloo/transport|tensorpipe/|Connection closed by peer|Gloo connectFullMesh", r"this error originated at tensorpipe/|gloo/transport/.{0,200}(?:Connection closed|error|[Tt]imed out|reset)|Connection closed by peer|Gloo connectFullMesh"),
    _kind("store_lost", _V, "unknown", "nobody", "the store of the ranks went away",
          "TCPStore|Socket Timeout|heartbeat|DistNetworkError", r"(?:TCPStore|DistNetworkError|DistStoreError).{0,200}(?:[Tt]imed? ?out|[Bb]roken|reset|fail|recvValue)|Socket Timeout|heartbeat monitor.{0,200}(?:timed out|stuck)"),
    _kind("taken_down", _V, "unknown", "nobody", "the watchdog ended the process",
          "taking the entire process down|watchdog thread terminated|DistBackendError|c10::DistBackend|ermination signal|SIGTERM", r"taking the entire process down|watchdog thread terminated|DistBackendError|SIGABRT|^\S*(?:Error|Exception)\b.{0,80}(?:[Tt]ermination signal|SIGTERM)"),
    _kind("uncaught", _X, "user", "rank", "its program stopped itself by an error", "what():|forrtl: severe|panic: |Assertion `|Check failed: |LoadError: ",
          r"^\s*what\(\):\s|^panic: |^forrtl: severe|Assertion `[^`]{1,300}' failed|\bCheck failed: |^ERROR: LoadError: "),
    # --- success, sizes
    _kind("success", _M, "unknown", "nobody", "",
          "raining |raining: |raining\n|raining.|inished|ompleted|NORMAL END|Done|done:|done\n|exiting program|Exiting program|after training is done|stopped: `max_|ret_code=0|raining_complete|run finished|Run finished|train_runtime|rc=0|train metrics|eval metrics|Loss for final step|un summary|ob completed|ob finished|ll epochs|aximum number of|max_steps|un completed",
          r"(?i)(?<!before )(?<!for )(?<!capture )\b(?:training|pre-?training|fine-?tuning) (?:job |run |loop |process )?(?:has |is |was )?(?:completed?|finished|done|succeeded|ended)(?: successfully)?\b(?! (?:step|epoch|iter|batch|\d+ of|for (?:epoch|step|batch)|with (?:error|exit code [1-9])))|\b(?:finished|completed|done) (?:with )?(?:all )?(?:pre|fine-?)?training\b(?! (?:step|epoch|iter|batch|data|set|for (?:epoch|step)))|after training is done|\[?exiting program (?:after \d[\d.]* minutes|at iteration \d+)|`?Trainer\.fit`? stopped: `max_(?:steps|epochs|time)|['\"]?train_runtime['\"]?\s*[:=]|^\*{3,} (?:train|eval) metrics \*{3,}|Loss for final step:|^(?:wandb: )?Run summary:|\b(?:run|job) (?:finished|completed) successfully|\b(?:total )?training time:? \d+:\d\d|\ball epochs (?:done|finished|completed)\b|(?:^|[\d\]] )(?:(?:INFO|I) )?\W{0,3}(?:done|finished|completed|normal end of (?:run|job|program))(?::? \d+ (?:steps|iterations|epochs)\b.{0,60})?\W*$|reached (?:the )?max(?:imum)?(?: number of|_) ?(?:train(?:ing)?[ _])?(?:steps|iterations|epochs)\b"),
    _kind("world_size", _M, "unknown", "nobody", "",
          "MEMBER:|world_size|world size|WORLD_SIZE|nranks|nRanks", r"MEMBER: \d+/(?P<a>\d{1,7})\b|\bworld[_ ]size['\"]?(?: is|\s*\.{2,})?\s*[:=]?\s*(?P<b>\d{1,7})\b|WORLD_SIZE=(?P<c>\d{1,7})\b|\bn[rR]anks (?P<d>\d{1,7})\b"),
    _kind("num_nodes", _M, "unknown", "nobody", "", "nnodes|NNODES|num_nodes|--standalone|num_machines",
          r"(?i)(?<![a-z])(?:n_?nodes|num_nodes|SLURM_NNODES|SLURM_JOB_NUM_NODES|num_machines)['\"]?\s*[:= ]\s*(?P<nodes>\d{1,6})\b|--standalone\b"),
    # --- lines of those who watch the job, which tell that it runs and not that it trains
    _kind("watcher", _M, "unknown", "nobody", "", "PULSE|ALERT|running for|running since|s running|s RUNNING|to be scheduled|scheduled to start|RUNNING|eartbeat|eep-alive|eepalive|  Running|1 Running| alive",
          r"^PULSE\b|^\*+ ?ALERT|\b(?:is|still) (?:still )?(?:not )?(?i:running)\b(?: (?:for|since|or|on|\()|\W*$)|\b(?:waiting|scheduled) to (?:be scheduled|start)\b|\bJob(?:State|Status)?\s*[=:]\s*(?:RUNNING|Running|PENDING)\b|\b[Jj]ob \S+ (?:is )?(?:still )?(?:RUNNING|running|alive)\b|\bR(?:UNNING)?\s+(?:\d+-)?\d+:\d\d(?::\d\d)?\s+\d+\s|\s\d+/\d+\s+Running\s|\b(?i:heartbeat|keep-?alive)\b(?! monitor).{0,60}\b(?i:ok|sent|received|alive)\b"),
    # --- progress; ``step`` counts, ``seconds`` or ``ms`` is what a step took
    _kind("evaluation", _M, "unknown", "nobody", "", "alid|valuat|esting |test set|redict",
          r"(?i)\bvalid(?:ation)? loss at (?:iteration|step)\s+(?P<step>\d{1,12})|(?<!\*)\*{3,}+ running (?:evaluation|prediction|validation|test)|^(?:\S+ )?(?:start(?:ing|ed)? |begin(?:ning)? |running |run )?(?:evaluation|validation)(?: (?:start|began|begin|loop|epoch|step|on |of |at |time|loss|took|dataloader)|:|\W*$)|\b(?:evaluating|validating)\b(?! (?:config|arg|param|env|check|input))|\b(?:eval|val|valid|validation)[_ /](?:loss|acc\w*|ppl)['\"]?\s*[:=]"),
    _kind("checkpoint_saved", _M, "unknown", "nobody", "", "aved|tored|ritten|rote|#save|ave-check",
          r"(?i)successfully saved check ?point at iteration\s+(?P<step>\d{1,12})|\b(?:successfully )?(?:saved|stored|written|wrote) (?:the |a |final |model |last |global )*(?:check ?point|weights|state|model)\b(?:.{0,80}?(?:step|iteration|iter)[ _=:]*(?P<step2>\d{1,12}))?|(?:model weights|check ?point|tokenizer config file|model) (?:is |was |successfully |has been )*(?:saved|stored|written)\b|\[#save\] \[END\]\s*\{\"global_step\": (?P<step3>\d{1,12})|save-check ?point: ?[\d.]+"),
    _kind("checkpoint", _M, "unknown", "nobody", "", "aving|ave_check|#save|rite check|riting check",
          r"(?i)\bsaving (?:the |a |final |model |training |global |distributed |async |last )*(?:check ?point|weights|state|model)\b(?:.{0,80}?(?:step|iteration|iter)[ _=:]*(?P<step>\d{1,12}))?|\bsave_check ?point\b(?!_interval|[_\w]*[:=.]).{0,40}(?:start|begin|\.\.\.)|\[#save\] \[BEGIN\]|\bwriting (?:the |a )?check ?point\b"),
    _kind("progress", _M, "unknown", "nobody", "", "iteration", r"\biteration\s+(?P<step>\d{1,12})/\s*(?P<total>\d+)\s*\|"),
    _kind("progress", _M, "unknown", "nobody", "", "step|Step|iter", r"(?i)^.{0,160}?\b(?:global_|train(?:ing)?[_ ])?(?:steps?(?:_i)?|iter(?:ation)?s?)['\"]?\s*[:=#]?\s*\[?(?P<step>\d{1,12})(?:\s*(?:/|of)\s*(?P<total>\d+))?\b(?=.{0,400}?(?:loss|\blr\b|tps|tokens|time|acc|grad|samples|it/s|s/it|throughput|\bsec\b|seconds|took))"),
    _kind("progress", _M, "unknown", "nobody", "", "raining: step|rain: step|raining step|rain step|raining: iter|rain: iter", r"(?i)\btrain\w*\b.{0,40}\b(?:step|iter\w*)[ :=#]+(?P<step>\d{1,12})\s*$"),
    _kind("progress", _M, "unknown", "nobody", "", "global_step/sec|train_step()|teps/sec", r"\bglobal_step/sec: \d|\btrain_step\(\) took \d|\bsteps/sec:? \d"),
    _kind("bar", _M, "unknown", "nobody", "", "it/s|s/it", r"^\s*+(?P<what>[^|%]{0,60}?):?\s{0,20}+\d{1,3}%\|[^|]{0,400}+\|\s*(?P<step>\d{1,12})/(?P<total>\d+) \[(?P<elapsed>[\d:]{1,20})<[\d:?]+"),
    _kind("progress", _M, "unknown", "nobody", "", "'loss'", r"\{'loss': [\d.]+"),
    _kind("progress", _M, "unknown", "nobody", "", "ms/step|s/step", r"^\s*(?P<step>\d{1,12})/(?P<total>\d+) (?:\[=*>?\.*\]|\S*) - .*\d(?:ms|s|us)/step"),
    _kind("epoch", _M, "unknown", "nobody", "", "poch", r"(?i)^\W*(?:start(?:ing|ed)? |begin(?:ning)? |train(?:ing)? )?epoch[ :#=\[]*\d+\b(?! (?:epochs|steps per))|\bepoch \d+ (?:finished|done|completed|began|started|took)"),
    # --- Python
    _kind("traceback", _M, "unknown", "nobody", "", "Traceback (most", r"Traceback \(most recent call last\)"),
    _kind("exception", _X, "user", "rank", "", "Error|Exception|StopIteration", r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|StopIteration))(?::\s*(?P<message>.*))?$"),
    _kind("hidden_cause", _W, "unknown", "unknown", "a wrapper hid the cause",
          "FULL_ERROR|with overrides|To enable traceback|TRACEBACK_FILTERING|non-zero exit status|returned a non-zero|terminated normally, but|full stack trace|complete stack trace|full trace|Job failed|job failed|Training failed|raining failed",
          r"\bHYDRA_FULL_ERROR=1|^Error executing job with overrides|To enable traceback see|TRACEBACK_FILTERING=off|returned (?:a )?non-zero (?:exit (?:status|code))(?!:? 0\b)|terminated normally, but \d+ process|(?i:\b(?:for|see|print|show|get|with)\b.{0,40}\b(?:full|complete) (?:stack ?)?trace|^\W*(?:\w+ )?(?:job|training|run) failed\b(?! attempts|: 0))"),
    _kind("clock_marker", _M, "unknown", "nobody", "", "TIMING RUN AT|RUNANDTIME_|datetime: 20|UTC 20|GMT 20|CEST 20|CET 20|PDT 20|PST 20|EDT 20|EST 20|JST 20|KST 20",
          r"^(?:STARTING|ENDING) TIMING RUN AT|^RUNANDTIME_(?:START|STOP)|datetime: 20\d\d|^\s*(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? [A-Z][a-z]{2} "),
)
# Says of itself that it is an error, and no kind above knows it.
KINDS += (_kind("severe", _M, "unknown", "nobody", "", 'ERROR|FATAL|CRITICAL|SEVERE|PANIC|FEHLER|ERREUR|level=|level":', r"\b(?:ERROR|FATAL|CRITICAL|SEVERE|PANIC|FEHLER|ERREUR)\b|\blevel\W{1,4}(?:err|fatal|crit)"),)
DATA_ERROR = _kind("data_error", _X, "user", "rank", "the data could not be read", "", "(?!)")
"""What an exception becomes when its traceback shows that data was being read."""
KIND_BY_NAME = {kind.name: kind for kind in (DATA_ERROR, *reversed(KINDS))}

_RESTARTS = {
    "node_failure": "helps", "launch_system": "helps", "not_finite": "unknown",
    "not_finite_locally": "unknown", "ib_error": "unknown", "nccl_system": "unknown",
    "gpu_absent": "fails_again", "shared_memory": "fails_again", "preemption": "helps",
}
_RESTARTS_BY_CLASS = {"user": "fails_again", "infra": "after_repair"}


def restart_after(cause: str | None, failure_class: FailureClass | None) -> str:
    """What a cause lets expect of a restart: it helps, fails_again, after_repair, or unknown."""
    return _RESTARTS.get(cause or "") or _RESTARTS_BY_CLASS.get(failure_class or "", "unknown")


SOFTWARE_XIDS = frozenset({13, 31, 32, 43, 45, 68, 69})
"""Xids that the application causes, or that only report its end."""
LAUNCHER_ERRORS = ("RayTaskError", "TrainingFailedError", "TuneError", "ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException", "SignalException", "SystemExit", "BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError", "EOFError: None")
"""Exceptions that only pass on the failure of another process."""
HIDING_ERRORS = frozenset({"RayTaskError", "TrainingFailedError", "TuneError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException", "ChildFailedError"})
"""Those of them that tell of a failure without its cause."""
DATA_TRACES = re.compile(r"(?i)data|shard|h5py|hdf5|parquet|arrow|tokeni|loader|webdataset|corpus|\.jsonl?\b|\.tar\b|lmdb")
"""Words in a traceback of code that reads data."""
DATA_ERRORS = frozenset({"KeyError", "FileNotFoundError", "IndexError", "UnicodeDecodeError", "JSONDecodeError", "ArrowInvalid", "UnpicklingError", "EOFError", "StopIteration", "OSError", "ReadError", "ValueError", "ParserError", "UnidentifiedImageError", "BadZipFile"})


LONGEST_LINE = 8192
_WINDOW_BYTES = 1 << 18  # bounds the matches in memory where a hostile log is full of them

Hit = tuple[int, int]


class LiteralSearch:
    """A search for literals, each with the kinds of line that may hold it, by their index."""

    def __init__(self, kinds: Mapping[bytes, Sequence[int]], *, at_once: bool = True) -> None:
        self._literals, self._kinds = tuple(kinds), tuple(kinds.values())
        self._longest = max(map(len, self._literals))
        self._automaton = _automaton(self._literals) if at_once else None

    def lines(self, data: bytes) -> Iterator[tuple[int, int, list[int]]]:
        """Lines that hold a literal: start, end, and the kinds that may match, ascending."""
        lines: dict[int, tuple[int, set[int]]] = {}
        for index, offset in self._hits(data):
            start, end = _line_around(data, offset)
            lines.setdefault(start, (end, set()))[1].update(self._kinds[index])
        for start in sorted(lines):
            end, kinds = lines[start]
            yield start, end, sorted(kinds)

    def _hits(self, data: bytes) -> Iterator[Hit]:
        if self._automaton is not None:
            yield from self._all_at_once(data, self._automaton)
            return
        for index, literal in enumerate(self._literals):
            offset = data.find(literal)
            while offset >= 0:
                yield index, offset
                end = data.find(b"\n", offset)
                offset = data.find(literal, end) if end >= 0 else -1

    def _all_at_once(self, data: bytes, automaton: Any) -> Iterator[Hit]:
        passed = [0] * len(self._literals)  # offsets up to which the line of a hit reaches
        for begin in range(0, len(data), _WINDOW_BYTES):
            # Windows overlap, so that no literal is split between two of them.
            window = data[begin : begin + _WINDOW_BYTES + self._longest - 1]
            for index, start, _ in automaton.find_matches_as_indexes(window, overlapping=True):
                # One hit a line is enough; a line full of a literal would be examined for each.
                if (offset := begin + start) >= passed[index]:
                    end = data.find(b"\n", offset)
                    passed[index] = len(data) if end < 0 else end
                    yield index, offset


def kinds_by_literal(table: Sequence[Kind]) -> dict[bytes, list[int]]:
    """Indices in the table of the kinds whose lines may hold a literal."""
    indices: dict[bytes, list[int]] = {}
    for index, kind in enumerate(table):
        for literal in kind.literals:
            indices.setdefault(literal.encode(), []).append(index)
    return indices


def _line_around(data: bytes, offset: int) -> tuple[int, int]:
    """Start and end of the line around an offset; an endless one starts ``LONGEST_LINE`` before."""
    low = max(0, offset - LONGEST_LINE)
    start = max(data.rfind(b"\n", low, offset) + 1, low)
    end = data.find(b"\n", offset)
    return start, len(data) if end < 0 else end


def _automaton(literals: Sequence[bytes]) -> Any | None:
    try:
        package = importlib.import_module("ahocorasick_rs")
    except ImportError:
        return None
    return package.BytesAhoCorasick(list(literals), implementation=package.Implementation.DFA)
