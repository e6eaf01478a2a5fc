"""What a launcher starts: one training job with its name and its place."""

from dataclasses import dataclass, field
from pathlib import Path

from lockstep_records.hangs import HANG_TIMEOUT_SECONDS
from lockstep_records.jobs import check_job_id, find_root, job_folder, new_job_id
from lockstep_records.options import read_address
from lockstep_records.page.writer import RankIdentity


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What to start and how it is called.

    Args:
        program: arguments to the Python interpreter: a script, or ``-m`` and a module, and theirs.
        nproc_per_node: ranks on this node.
        endpoint: HOST:PORT of the rendezvous; empty for a job on this node alone.
        serve: HOST:PORT at which an agent of the job's own serves its pages; empty for none.
        log_json: whether the ranks' logs are JSON lines.
        summary_to: where summaries go, each SINK or SINK:TARGET.
        hang_timeout_seconds: time without progress that is a hang, 20 median steps at least; 0
            watches no rank.

    Raises:
        ValueError: the id cannot be a folder's name, a name does not fit into a page, an address
            is none, or several nodes have nowhere to meet.
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
    serve: str = ""
    log_json: bool = False
    summary_to: tuple[str, ...] = ()
    hang_timeout_seconds: float = HANG_TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        check_job_id(self.job_id)
        RankIdentity(  # what a rank could not write is refused here
            rank=0, world_size=1, job_id=self.job_id, cluster=self.cluster, project=self.project
        )
        for flag, address in (("--endpoint", self.endpoint), ("--serve", self.serve)):
            try:
                read_address(address or "localhost:0")
            except ValueError as error:
                raise ValueError(f"{flag} {error}") from error
        if self.nnodes > 1 and not self.endpoint:
            raise ValueError(
                f"--nnodes {self.nnodes} needs --endpoint HOST:PORT and --job-id, the same on all"
            )

    @property
    def folder(self) -> Path:
        """Where pages and events of the job lie."""
        return job_folder(self.root, self.job_id)
