"""Files that another user may have written are opened by ``foreign_files`` and nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ROOMS = (
    "records/lockstep_records",
    "outcomes/lockstep_outcomes",
    "instrumentation/lockstep",
    "agent/lockstep_agent",
)
OPENING = frozenset(("open", "read_text", "read_bytes", "mmap", "write_text", "write_bytes"))
OPENING_OF_SHUTIL = frozenset(("copy", "copy2", "copyfile", "copyfileobj", "copytree", "move"))
PROC = "of the kernel, in /proc or /sys"
USERS = "that the user names on the command line or in a variable"
OWN = "of the program itself, in a folder that no tenant writes"
# Path without its suffix -> what it opens besides, with the reason why no tenant can have put it.
MAY_OPEN = {
    "records/lockstep_records/files/jobs": "the folder of jobs itself, without links",
    "records/lockstep_records/file_access/foreign_files": "this is the way",
    "records/lockstep_records/file_access/own_files": "this is the way to write",
    "records/lockstep_records/page/writer": "a new page, exclusively, by its folder's descriptor",
    "records/lockstep_records/page/liveness": PROC,
    "records/lockstep_records/archive/reader": "a page in the temporary folder of a report",
    "outcomes/lockstep_outcomes/progress/hangs": PROC,
    "records/lockstep_records/file_access/atomic_file": "checkpoints, states and reports",
    "records/lockstep_records/files/job_status": "notes in the agent's own folder",
    "records/lockstep_records/files/rank_files": "a new trace in the folder that the user names",
    "records/lockstep_records/file_access/compressed": "logs " + USERS,
    "records/lockstep_records/file_access/token_files": "tokens that the operator names",
    "records/lockstep_records/files/roots": "mounts by the kernel, and the settings of logind",
    "records/lockstep_records/text/documents": "cards, specs and settings that the operator names",
    "agent/lockstep_agent/jobs/unreported": PROC,
    "records/lockstep_records/delivery/duty": "locks of users under the root, without content",
    "instrumentation/lockstep/commands/training_script": "the script " + USERS,
    "instrumentation/lockstep/preflight": OWN,
    "instrumentation/lockstep/commands/instrument": OWN,
    "instrumentation/lockstep/hangs/rank_watch": PROC,
    "instrumentation/lockstep/recorder/device": PROC,
    "instrumentation/lockstep/attach": PROC,
    "instrumentation/lockstep/identity/scheduler": "what the kubelet wrote into the pod, bounded",
    "instrumentation/lockstep/identity/requeues": PROC,
    "instrumentation/lockstep/launch/description": PROC,
    "instrumentation/lockstep/monitor/step_callbacks": PROC,
    "instrumentation/lockstep/monitor/memory": PROC,
    "instrumentation/lockstep/monitor/periodic": PROC,
    "agent/lockstep_agent/state_file": OWN,
    "agent/lockstep_agent/runtime/collector_worker": PROC,
    "agent/lockstep_agent/doctor/checkup": "results " + USERS,
    "agent/lockstep_agent/collectors/node/host": PROC,
    "agent/lockstep_agent/collectors/gpu/allocation": "job files of the scheduler's prolog",
    "agent/lockstep_agent/collectors/node/kernel_log": PROC,
    "agent/lockstep_agent/sources/logs": "the kernel's log",
    "agent/lockstep_agent/sources/mounts": PROC,
    "agent/lockstep_agent/sources/sysfs": PROC,
    "agent/lockstep_agent/sources/process_job": PROC,
    "agent/lockstep_agent/sources/ras_socket": PROC,
    "agent/lockstep_agent/sources/job_processes": PROC,
    "agent/lockstep_agent/sources/nccl_processes": PROC + ", and the library that a process maps",
    "agent/lockstep_agent/web/access_control": "the web server's file and certificates " + USERS,
}


def opening_calls(source: str) -> Iterator[str]:
    """Calls that open a file by its path, as they stand in a module."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in OPENING:
            yield ast.unparse(function)
        elif isinstance(function, ast.Attribute) and not _is_own_method(function.value):
            of_shutil = ast.unparse(function.value) == "shutil"
            if function.attr in (OPENING_OF_SHUTIL if of_shutil else OPENING):
                yield ast.unparse(function)


def _is_own_method(value: ast.expr) -> bool:
    """Whether the call is of something that is no path: an object's part of that name."""
    return ast.unparse(value) in {"self._keeper", "files"}


LISTING = frozenset(("iterdir", "scandir", "listdir", "glob", "rglob", "walk"))
# Path without its suffix -> what it lists.
MAY_LIST = {
    "records/lockstep_records/file_access/foreign_files": "this is the way",
    "records/lockstep_records/files/jobs": "the folder of jobs, whose entries fail alone",
    "records/lockstep_records/files/job_status": "one job, which an error leaves out",
    "agent/lockstep_agent/jobs/job_snapshot": "one job, which an error leaves empty",
    "records/lockstep_records/files/roots": "settings of logind",
    "outcomes/lockstep_outcomes/joblogs/model": "logs " + USERS,
    "instrumentation/lockstep/patches/saves": "the checkpoint of the rank itself",
    "instrumentation/lockstep/commands/training_script": "files beside the script " + USERS,
    "instrumentation/lockstep/commands/instrument": OWN,
    "instrumentation/lockstep/monitor/step_callbacks": PROC,
    "instrumentation/lockstep/attach": PROC,
    "instrumentation/lockstep/launch/description": PROC,
    "agent/lockstep_agent/sources/sysfs": PROC,
    "agent/lockstep_agent/sources/job_processes": PROC,
    "agent/lockstep_agent/sources/pods": "logs that the kubelet writes",
}


def test_only_files_of_the_list_list_a_folder_and_each_of_them_does() -> None:
    found = {
        name
        for name, source in modules()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in LISTING
        and ast.unparse(node.func) != "ast.walk"
    }
    assert found == MAY_LIST.keys()


def modules() -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            name = path.relative_to(REPOSITORY).with_suffix("").as_posix()
            yield name, path.read_text(encoding="utf-8")


def test_only_files_of_the_list_open_by_a_path_and_each_of_them_does() -> None:
    found = {name: calls for name, source in modules() if (calls := [*opening_calls(source)])}
    assert {name: calls for name, calls in found.items() if name not in MAY_OPEN} == {}
    assert set(MAY_OPEN) - set(found) == set()
