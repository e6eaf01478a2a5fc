"""Attempts over requeues: what launcher and scheduler say of them in the environment."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from lockstep_records.files.jobs import attempt_to_join, job_folder, page_path
from lockstep_records.page.writer import RankIdentity

FIRST_ATTEMPT = "LOCKSTEP_FIRST_ATTEMPT"
"""Number of the first attempt of this start of the job; ``lockstep run`` sets it."""
# Slurm counts itself. Kubernetes keeps the count in a label of the pods of a JobSet and in an
# annotation of an indexed Job's, which the downward API gives by the first name.
_REQUEUES = ("LOCKSTEP_RESTART_COUNT", "SLURM_RESTART_COUNT")


def read_integer(environment: Mapping[str, str], name: str, default: int) -> int:
    """A whole number of the environment; a ValueError names the variable."""
    text = environment.get(name, "")
    if not text:
        return default
    if not text.lstrip("-").isdigit():
        raise ValueError(
            f"{name}={text!r} is not a whole number; a launcher sets it, do not set it by hand"
        )
    return int(text)


def requeues_of(environment: Mapping[str, str]) -> int:
    """How often the scheduler has started the job again; 0 where it does not say."""
    for name in _REQUEUES:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def first_attempt_of(environment: Mapping[str, str]) -> int:
    """Number of the first attempt of this start, by the launcher or by the scheduler."""
    return read_integer(environment, FIRST_ATTEMPT, requeues_of(environment))


def restarts_of(environment: Mapping[str, str]) -> int:
    """Restarts of the ranks since this start, as torchrun counts them."""
    return read_integer(environment, "TORCHELASTIC_RESTART_COUNT", 0)


def process_key(process: int, proc: Path = Path("/proc")) -> str:
    """A process by its PID namespace, its id there and its start, for ids recur; or OSError."""
    stat = (proc / str(process) / "stat").read_bytes().rpartition(b")")[2].split()
    return f"{(proc / 'self' / 'ns' / 'pid').readlink()} {process} {stat[19].decode()}"


def launch_key_of(environment: Mapping[str, str], process: int) -> int:
    """Same on all ranks that one process has started together, and on no others; 32 bit."""
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return crc32(f"{process_key(process)} {restarts}".encode()) or 1


def with_attempt(
    identity: RankIdentity, root: Path, environment: Mapping[str, str]
) -> RankIdentity:
    """The identity with its attempt counted on over what this node knows; or OSError."""
    if environment.get(FIRST_ATTEMPT):
        return identity
    name = page_path(root, identity.job_id, 0, identity.rank).name
    attempt = attempt_to_join(job_folder(root, identity.job_id), name, identity.launch_key)
    return replace(identity, attempt=max(attempt, identity.attempt))
