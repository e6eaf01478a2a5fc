"""What a launcher starts: one training job with its name and its place."""

from dataclasses import dataclass
from pathlib import Path

from lockstep_records.jobs import job_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What to start and how it is called.

    Args:
        program: arguments to the Python interpreter: a script, or ``-m`` and a module, and theirs.
        nproc_per_node: ranks on this node.
        endpoint: HOST:PORT of the rendezvous; empty for a job on this node alone.
        serve: HOST:PORT at which an agent of the job's own serves its pages; empty for none.
    """

    program: tuple[str, ...]
    nproc_per_node: int
    job_id: str
    root: Path
    cluster: str = "local"
    project: str = ""
    max_restarts: int = 0
    num_nodes: int = 1
    endpoint: str = ""
    serve: str = ""

    @property
    def folder(self) -> Path:
        """Where pages and events of the job lie."""
        return job_folder(self.root, self.job_id)
