"""The training job that a launcher starts: its program, its name and its folder."""

from dataclasses import dataclass, field
from pathlib import Path

from lockstep.launch.description import JobDescription
from lockstep_cli.options import read_address
from lockstep_outcomes.progress.hangs import (
    HANG_TIMEOUT_SECONDS,
    PAUSE_TIMEOUT_SECONDS,
    HangTimeouts,
)
from lockstep_records.delivery.sender import LedgerAddress
from lockstep_records.files.jobs import check_job_id, find_root, job_folder, new_job_id
from lockstep_records.page.writer import RankIdentity


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One training job.

    Args:
        program: arguments to the Python interpreter: a script, or ``-m`` and a module, and theirs.
        max_restarts: restarts of all ranks after a failure.
        endpoint: HOST:PORT of the rendezvous; empty for a job of one node.
        log_folder: of torchrun's logs; None for one in the job's folder.
        serve: HOST:PORT at which an agent of the job's own serves its pages; empty for none.
        log_json: whether the ranks' logs are JSON lines.
        plugin: whether the ranks' NCCL loads our plugin, which records them without ``attach``.
        summary_to: destinations of summaries, each SINK or SINK:TARGET.
        hang_timeout_seconds: time without progress that is a hang, 20 median steps at least; 0
            watches no rank.
        pause_timeout_seconds: the same in initialisation, checkpoint, evaluation and restore.
        description: what its events say of it.
        ledger: where its events are delivered, unless an agent does; None for nowhere.

    Raises:
        ValueError: the id is not a folder name, a name does not fit into a page, an address is not
            HOST:PORT, or several nodes have no rendezvous.
    """

    program: tuple[str, ...]
    nproc_per_node: int = 1
    nnodes: int = 1
    job_id: str = field(default_factory=new_job_id)
    root: Path = field(default_factory=find_root)
    cluster: str = "local"
    project: str = ""
    max_restarts: int = 0
    endpoint: str = ""
    rendezvous: dict[str, str] = field(default_factory=dict)
    local_address: str = ""
    log_folder: Path | None = None
    serve: str = ""
    log_json: bool = False
    plugin: bool = False
    summary_to: tuple[str, ...] = ()
    hang_timeout_seconds: float = HANG_TIMEOUT_SECONDS
    pause_timeout_seconds: float = PAUSE_TIMEOUT_SECONDS
    description: JobDescription = field(default_factory=JobDescription)
    ledger: LedgerAddress | None = None

    def __post_init__(self) -> None:
        check_job_id(self.job_id)
        # A rank refuses the same values, but in its own log and after the start.
        RankIdentity(
            rank=0,
            world_size=1,
            job_id=self.job_id,
            cluster=self.cluster,
            project=self.project,
            queue=self.description.queue,
            job_class=self.description.job_class,
        )
        for flag, address in (("--endpoint", self.endpoint), ("--serve", self.serve)):
            try:
                # Empty means none, which is valid.
                read_address(address or "localhost:0")
            except ValueError as error:
                raise ValueError(f"{flag} {error}") from error
        if self.ledger is not None and not self.ledger.url.startswith(("http://", "https://")):
            raise ValueError(
                f"--ledger {self.ledger.url!r} is not an address; give one that begins with http://"
            )
        if self.nnodes > 1 and not self.endpoint:
            raise ValueError(
                f"--nnodes {self.nnodes} needs --endpoint HOST:PORT and --job-id, the same on all"
            )

    @property
    def hang_timeouts(self) -> HangTimeouts:
        """The time-outs of its ranks."""
        return HangTimeouts(
            step_seconds=self.hang_timeout_seconds, pause_seconds=self.pause_timeout_seconds
        )

    @property
    def folder(self) -> Path:
        """Folder of the job's pages and events."""
        return job_folder(self.root, self.job_id)
