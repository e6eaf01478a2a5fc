"""The endings of made logs: each adds its lines and says what is true."""

from collections.abc import Callable

from made_logs import MadeLog, Truth, train

from lockstep_catalogue.vocabulary import Verdict

Ending = Callable[[MadeLog], None]


def _set(log: MadeLog, outcome: str, cause: str | None, blame: Verdict, *ranks: int) -> None:
    log.truth = Truth(
        outcome, cause, blame, ranks, median_seconds=log.truth.median_seconds,
        after_seconds=log.truth.after_seconds,
    )  # fmt: skip


def _failure(log: MadeLog, cause: str, rank: int) -> None:
    """The rank is named where labels name ranks of the job; else nobody is."""
    if log.names_ranks:
        _set(log, "failed", cause, "rank", rank)
    else:
        _set(log, "failed", cause, "unknown")


def success(log: MadeLog) -> None:
    """Words of success, one of many."""
    log.add(log.draw.choice([
        "Training completed.", "[after training is done] datetime: " + log.local(),
        "{'train_runtime': 273.0, 'train_samples_per_second': 3.6, 'epoch': 1.0}",
        "`Trainer.fit` stopped: `max_steps=100` reached.", "Loss for final step: 0.0123.",
        "Training finished successfully", "***** train metrics *****",
    ]))  # fmt: skip
    _set(log, "succeeded", None, "nobody")


def success_then_saved(log: MadeLog) -> None:
    """The last checkpoint is saved after the words of success."""
    success(log)
    log.now += 20
    log.add("saving checkpoint at iteration 60 to /ckpt")
    log.now += 20
    log.add("  successfully saved checkpoint at iteration 60 to /ckpt")


def success_withdrawn(log: MadeLog) -> None:
    """Words of success, and work after them that never ends."""
    log.add(log.draw.choice(["Training completed.", "Training of phase 1 done. Training finished"]))
    log.now += 5
    later = log.draw.choice(["eval", "steps", "epoch", "save"])
    if later == "eval":
        log.add("***** Running Evaluation *****")
    elif later == "steps":
        train(log, 61, 12)
    elif later == "epoch":
        log.add("Starting epoch 3")
    else:
        log.add("saving checkpoint at iteration 70 to /ckpt")
    _set(log, "unknown", None, "unknown")


def mlperf_success(log: MadeLog) -> None:
    """An explicit status, a step of the end, and a closing line with the time of the start."""
    start = log.now - 600
    log.mllog("run_stop", '{"status": "success"}')
    log.now += 9
    log.add(f"ENDING TIMING RUN AT {log.local('%Y-%m-%d %I:%M:%S %p')}")
    began = log.local("%Y-%m-%d %I:%M:%S %p", start)
    log.add(f"RESULT,DETECTOR,,629,somebody,{began}")
    _set(log, "succeeded", None, "nobody")
    log.truth.after_seconds = 9.0


def planned_stop(log: MadeLog) -> None:
    """Megatron's exit after so many minutes."""
    log.add("saving checkpoint at iteration 60 to /ckpt")
    log.add("  successfully saved checkpoint at iteration 60 to /ckpt")
    log.add(f"[exiting program after 1190.03 minutes] datetime: {log.local()}")
    for _ in range(3):
        log.now += 3600
        log.add(f"[{log.local()}] ***ALERT: run-7 is not RUNNING or SCHEDULED! Alert someone***")
    _set(log, "succeeded", None, "nobody")


def time_limit(log: MadeLog) -> None:
    """Slurm's time limit."""
    log.now += 4
    at = log.local("%Y-%m-%dT%H:%M:%S")
    log.add(f"slurmstepd: error: *** STEP 7.0 ON g0 CANCELLED AT {at} DUE TO TIME LIMIT ***")
    _set(log, "time_limit", "time_limit", "nobody")


def time_limit_after_success(log: MadeLog) -> None:
    """The time limit ends a run that had succeeded, while its teardown hangs."""
    log.mllog("run_stop", '{"status": "success"}')
    log.now += log.draw.uniform(10, 700)
    time_limit(log)
    _set(log, "succeeded", None, "nobody")


def interrupted(log: MadeLog) -> None:
    """Ctrl-C, and a terminal's escape."""
    log.add(log.draw.choice(["^C^Z", "^C", "KeyboardInterrupt", "\x03", "^\\"]))
    _set(log, "cancelled", "cancelled", "nobody")


def cancelled(log: MadeLog) -> None:
    """Scancel."""
    log.now += 4
    log.add(
        f"slurmstepd: error: *** JOB 7 ON gpu-0 CANCELLED AT {log.local('%Y-%m-%dT%H:%M:%S')} ***"
    )
    _set(log, "cancelled", "cancelled", "nobody")


def preempted(log: MadeLog) -> None:
    """Slurm's preemption."""
    at = log.local("%Y-%m-%dT%H:%M:%S")
    log.add(f"slurmstepd: error: *** JOB 7 ON g0 CANCELLED AT {at} DUE TO PREEMPTION ***")
    _set(log, "preempted", "preemption", "nobody")


def hidden(log: MadeLog) -> None:
    """A wrapper that keeps the cause to itself."""
    log.add(log.draw.choice([
        "Error executing job with overrides: ['trainer.devices=8']",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
        "For the full stack trace set JAX_TRACEBACK_FILTERING=off.",
        "Job failed. Run with full traceback to see more.",
    ]))  # fmt: skip
    _set(log, "failed", "exit", "unknown")


def memory(log: MadeLog) -> None:
    """One rank runs out of memory; the others' collectives time out minutes later."""
    rank = log.draw.randrange(log.world)
    log.traceback(rank, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.")
    log.now += 600
    for other in range(log.world):
        if other != rank:
            work = "WorkNCCL(SeqNum=417, OpType=ALLREDUCE, NumelIn=1, NumelOut=1)"
            log.add(f"[E ProcessGroupNCCL.cpp:616] [Rank {other}] Watchdog caught collective "
                    f"operation timeout: {work} ran for 600000 milliseconds", other)  # fmt: skip
    # The timeouts name all others, whatever the launcher labels.
    _set(log, "failed", "gpu_oom", "rank", rank)


def shared_exception(log: MadeLog) -> None:
    """All ranks raise alike; the launcher lists some of them."""
    for rank in range(log.world):
        log.traceback(rank, "ValueError: head size 96 is not supported by this kernel")
    listed = range(max(1, log.world // 4))
    log.add("Root Cause (first observed failure):")
    for rank in listed:
        log.add(f"  rank      : {rank} (local_rank: {rank % 8})")
        log.add("  exitcode  : 1 (pid: 227)")
    _set(log, "failed", "exception", "workload")


def one_exception(log: MadeLog) -> None:
    """One rank raises, and the others lose their connection to it."""
    rank = log.draw.randrange(log.world)
    log.traceback(rank, "RuntimeError: sensor value out of range")
    for other in range(log.world):
        if other != rank:
            log.add("[c10d] socketProgress: Connection closed by remote peer", other)
    _failure(log, "exception", rank)


def kernel_segfault(log: MadeLog) -> None:
    """The kernel's line of a process that touched what is not its own."""
    log.add("[412331.9] python[22174]: segfault at 18 ip 00007f2 sp 00007ffd error 4 in "
            "libnccl.so.2[7f21c000+1000]")  # fmt: skip
    _set(log, "failed", "segfault", "unknown")


def watched_hang(log: MadeLog) -> None:
    """The scheduler calls it running while the trainer is silent."""
    for _ in range(4):
        log.now += 3600
        log.add(f"[{log.local()}] PULSE: run-7 is running for 1-02:03:04 since 2022-04-29T20:28:38")
    _set(log, "unknown", "hang", "unknown")


def silence(log: MadeLog) -> None:
    """The log just stops."""
    _set(log, "unknown", None, "unknown")


def helper_fails(log: MadeLog) -> None:
    """A step of one task beside the training ends with an error; its task is not a rank."""
    success(log)
    log.add("+ srun --ntasks=1 ./collect_logs.sh")
    log.add("srun: error: gpu-0: task 0: Exited with exit code 1")


ENDINGS: tuple[Ending, ...] = (
    success, success_then_saved, success_withdrawn, mlperf_success, planned_stop, time_limit,
    time_limit_after_success, interrupted, cancelled, preempted, hidden, memory, shared_exception,
    one_exception, kernel_segfault, watched_hang, silence, helper_fails,
)  # fmt: skip

LAUNCH_ERRORS = (
    "srun: error: Invalid --container-mounts argument: data:/data",
    "srun: error: pyxis: could not add mount entry: data:/data",
    "slurmstepd: error: pyxis: failed to import docker image",
    "docker: Error response from daemon: manifest unknown.",
    "srun: error: Unable to create step for job 7: Invalid partition name specified",
    "slurmstepd: error: execve(): ./run.sh: No such file or directory",
    "bash: line 1: torchrunn: command not found",
    "Failed to pull image: ImagePullBackOff",
)
