"""Ranks that load NCCL's plugin, played by the driver in fixtures/nccl-driver: no GPU is needed."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[3]
_NATIVE = _ROOT / "instrumentation" / "native"
_DRIVER = _ROOT / "tests" / "fixtures" / "nccl-driver"
_SECONDS = 120.0


class Compiled(NamedTuple):
    """Programs that load a plugin, ours and another's."""

    driver: Path
    abuse: Path
    plugin: Path
    following: Path


@cache
def compile_driver(*flags: str) -> Compiled:
    """Of these sources, with these flags of gcc."""
    folder = Path(tempfile.mkdtemp(prefix="nccl-driver-"))
    folder.chmod(0o755)
    names = ("driver", "abuse", "plugin.so", "next.so")
    compiled = Compiled(*(folder / name for name in names))
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-tsan")
    plugin = [*sorted((_NATIVE / "plugin").glob("*.c")), _NATIVE / "checksum.c"]
    shared = ("-fPIC", "-shared", "-fvisibility=hidden")
    for out, *arguments in (
        (compiled.driver, _DRIVER / "driver.c"),
        (compiled.abuse, "-rdynamic", _DRIVER / "abuse.c"),
        (compiled.plugin, *shared, *plugin),
        (compiled.following, *shared, "-fvisibility=default", _DRIVER / "next.c"),
    ):
        command = ["gcc", "-O2", "-g", *warnings, *flags, "-o", out, *arguments]
        subprocess.run([*map(str, command), "-ldl", "-lpthread"], check=True, capture_output=True)
    return compiled


def plan_of(ranks: int, *operations: tuple[str, int, int, int], comms: int = 1) -> str:
    """A plan in which all ranks do these: function, count, microseconds of work and of transfer."""
    members = ",".join(map(str, range(ranks)))
    lines = [f"comm {0xC0FFEE00 + comm:#x} {members}" for comm in range(comms)]
    for number, (function, count, compute_us, transfer_us) in enumerate(operations):
        lines.append(
            f"op {number % comms} {function} {count} {compute_us} {transfer_us} -1 -1 {number}"
        )
    return "".join(f"{line}\n" for line in lines)


def ddp(ranks: int, *, step_us: int = 5000, layers: int = 4, comms: int = 1) -> str:
    """A plan of data parallelism: buckets of different sizes, most of the work before the first."""
    buckets = [("AllReduce", 1000 + 64 * bucket, 50, 300) for bucket in range(layers)]
    return plan_of(ranks, ("AllReduce", 1000, step_us, 300), *buckets[1:], comms=comms)


def moe(ranks: int) -> str:
    """A plan of experts: tokens go to all ranks and back in grouped sends and receives."""
    lines = [
        f"comm 0xC0FFEE00 {','.join(map(str, range(ranks)))}",
        "op 0 AllReduce 999 20000 300 -1 -1 0",
    ]
    pairs = [(sender, to) for sender in range(ranks) for to in range(ranks) if sender != to]
    for group in (1, 2):
        for sender, to in pairs:
            lines.append(f"op 0 Send 4096 0 300 {sender} {to} {group}")
            lines.append(f"op 0 Recv 4096 0 300 {to} {sender} {group}")
        lines.append(f"op 0 AllReduce {1000 + group} 200 300 -1 -1 {2 + group}")
    return "".join(f"{line}\n" for line in lines)


@contextmanager
def start_ranks(
    root: Path,
    *flags: str,
    job: str = "job",
    environment: Mapping[str, str] | None = None,
    plan: str = "",
    ranks: int = 8,
    **settings: object,
) -> Iterator[subprocess.Popen[str]]:
    """The driver while its ranks run; what is left of them ends with it."""
    compiled = compile_driver(*flags)
    path = compiled.plugin.with_name(f"{job}-{root.name}.plan")
    path.write_text(plan or ddp(ranks))
    given = {"plugin": compiled.plugin, "plan": path, "ranks": ranks, **settings}
    own = {"LOCKSTEP_DIR": str(root), "LOCKSTEP_JOB_ID": job, **(environment or {})}
    process = subprocess.Popen(
        [str(compiled.driver), *(f"{name}={value}" for name, value in given.items())],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run_ranks(
    root: Path,
    *flags: str,
    status: int = 0,
    job: str = "job",
    environment: Mapping[str, str] | None = None,
    **settings: object,
) -> tuple[Path, str]:
    """The folder of the job after its end, and what the ranks wrote to standard error."""
    own = start_ranks(root, *flags, job=job, environment=environment, **settings)  # type: ignore[arg-type]  # by name
    with own as process:
        output, errors = process.communicate(timeout=_SECONDS)
        assert process.returncode == status, (process.returncode, output, errors)
    return root / "jobs" / job, errors
