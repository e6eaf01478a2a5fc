"""Rows of slurmdbd's table of jobs (22.05), for history that no test can wait for."""

from dataclasses import dataclass
from datetime import datetime

UNSET = 4_294_967_294
# Numbers of slurm.h; REQUEUED is the flag that accounting stores alone.
STATES = {
    "PENDING": 0,
    "RUNNING": 1,
    "SUSPENDED": 2,
    "COMPLETED": 3,
    "CANCELLED": 4,
    "FAILED": 5,
    "TIMEOUT": 6,
    "NODE_FAIL": 7,
    "PREEMPTED": 8,
    "BOOT_FAIL": 9,
    "DEADLINE": 10,
    "OUT_OF_MEMORY": 11,
    "REQUEUED": 1024,
}
ASSOCIATIONS = {
    "root": 2,
    "vision": 5,
    "speech": 6,
}  # of user root, in the order in which the lab adds them
# Columns that have no default, and the same value in each row.
CONSTANTS: dict[str, int | str] = {
    "cpus_req": 8,
    "flags": 16,
    "id_resv": 0,
    "id_wckey": 0,
    "id_user": 0,
    "id_group": 0,
    "state_reason_prev": 0,
    "priority": 1,
    "timelimit": 60,
}
CLASSES = {"normal": 1, "pretraining": 2, "debug": 3}


def utc(text: str) -> int:
    """Seconds since 1970 of a time such as ``2026-10-25T00:30:00``."""
    return int(datetime.fromisoformat(text + "+00:00").timestamp())


@dataclass(frozen=True)
class Row:
    """One run of one job; 0 is a time that has not come."""

    job_id: int
    submitted: int
    started: int = 0
    ended: int = 0
    state: str = "COMPLETED"
    eligible: int | None = None  # the time of the submission
    exit_code: int = 0  # the wait status: 256 is exit 1, 9 is SIGKILL
    derived_exit_code: int = 0
    gpus: int = 8
    num_nodes: int = 1
    name: str = "history"
    partition: str = "main"
    account: str = "root"
    job_class: str = "normal"
    array_job: int = 0
    array_task: int = UNSET
    het_job: int = 0
    het_offset: int = UNSET
    suspended_seconds: int = 0

    def insert_sql(self) -> str:
        """The statement that writes the row; a name may hold everything."""
        ran = self.started > 0
        nodes = ",".join(f"n{number + 1}" for number in range(self.num_nodes))
        tres = f"1=8,4={self.num_nodes},5=8" + (f",1001={self.gpus}" if self.gpus else "")
        values: dict[str, int | str] = {
            "mod_time": self.ended or self.started or self.submitted,
            "account": self.account,
            "derived_ec": self.derived_exit_code,
            "exit_code": self.exit_code,
            "job_name": self.name,
            "id_assoc": ASSOCIATIONS[self.account],
            "id_array_job": self.array_job,
            "id_array_task": self.array_task,
            "id_job": self.job_id,
            "id_qos": CLASSES[self.job_class],
            "het_job_id": self.het_job,
            "het_job_offset": self.het_offset,
            "nodelist": nodes if ran else "None assigned",
            "nodes_alloc": self.num_nodes if ran else 0,
            "partition": self.partition,
            "state": STATES[self.state],
            "time_submit": self.submitted,
            "time_eligible": self.submitted if self.eligible is None else self.eligible,
            "time_start": self.started,
            "time_end": self.ended,
            "time_suspended": self.suspended_seconds,
            "tres_alloc": tres if ran else "",
            "tres_req": tres,
        }
        columns = {name: _quote(value) for name, value in (CONSTANTS | values).items()}
        return f"{_insert(columns)} values ({', '.join(columns.values())})"


def _insert(columns: dict[str, str]) -> str:
    names = ", ".join(f"`{name}`" for name in columns)
    return f"insert into lab_job_table ({names})"


def _quote(value: int | str) -> str:
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\t", "\\t") + "'"
