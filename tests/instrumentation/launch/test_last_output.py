"""A rank that fails leaves behind its error, its last output, its attempt."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from servers import captured

from lockstep.launch.last_output import KeptOutput, OutputKeeper
from lockstep_records.events.event import read_events
from lockstep_records.files.jobs import job_folder, page_path
from lockstep_records.files.last_output import MAX_OUTPUT_BYTES, read_error, read_output
from lockstep_records.page.reader import read_page

TIMEOUT_SECONDS = 240
PROGRAM = """
import os, sys
import lockstep
monitor = lockstep.attach(rows=8)
monitor.step(tokens=1)
print("noise " * 5000, "\\npassword=hunter2hunter2", file=sys.stderr)
os.write(2, b"last words without an end of line")
if "preempted" in sys.argv:
    monitor.close()
    sys.exit(75)
def stage():
    raise LookupError("no shard 7, token=hf_abcdefghijklmnopqrstuv")
stage()
"""


def program_in(folder: Path) -> str:
    path = folder / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def start(root: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if "LOCKSTEP" not in name}
    return captured(
        [sys.executable, *command],
        env=inherited | {"LOCKSTEP_DIR": str(root), **environment},
        timeout=TIMEOUT_SECONDS,
    )


def run_job(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ("-m", "lockstep_cli.main", "run", "--job-id", "one")
    return start(root, *command, program_in(root), *arguments)


@pytest.mark.distributed
@pytest.mark.timeout(TIMEOUT_SECONDS * 2)
def test_a_failing_job_leaves_its_error_and_its_last_output_and_counts_on(root: Path) -> None:
    assert run_job(root, "preempted").returncode == 75
    done = run_job(root)
    assert done.returncode == 1
    assert "password=hunter2hunter2" in done.stderr  # passed on as it was written
    page = page_path(root, "one", 1, 0)
    output = read_output(page)
    assert output is not None
    assert "password=***" in output
    assert "hunter2" not in output
    assert "last words without an end of line" in output
    assert "LookupError" in output
    error = read_error(page)
    assert error is not None
    assert (error.source, error.type, error.function) == ("except_hook", "LookupError", "stage")
    assert error.message == "no shard 7, token=***"
    assert [read_page(page_path(root, "one", n, 0)).identity["attempt"] for n in (0, 1)] == [0, 1]
    ends = [e for e in read_events(job_folder(root, "one")) if e.fields.get("exception")]
    assert [e.kind for e in ends] == ["rank_ended", "attempt_ended", "job_finished"]
    for end in ends:
        assert end.attempt == 1
        assert end.fields["exception"].startswith("LookupError: no shard 7, token=*** (")
    assert (
        "lockstep: job one: The job failed: rank 0 raised LookupError: no shard 7, token=*** (train"
        in done.stderr
    )


@pytest.mark.distributed
def test_without_a_launcher_the_rank_itself_leaves_its_error_and_counts_on(root: Path) -> None:
    for attempt, arguments in enumerate([("preempted",), ()]):
        done = start(root, program_in(root), *arguments, LOCKSTEP_JOB_ID="one")
        assert done.returncode == (75 if arguments else 1), done.stderr
        page = page_path(root, "one", attempt, 0)
        assert read_page(page).identity["attempt"] == attempt
        assert (read_error(page) is None) == bool(arguments)
    assert "LookupError: no shard 7" in done.stderr  # the interpreter's own traceback


def test_output_is_passed_on_unchanged_and_takes_no_memory(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keeper = OutputKeeper()
    page = root / "rank-00000.page"
    ring, path = keeper.open(page)
    assert ring is not None
    text = "".join(f"line {number}\n" for number in range(150_000))
    with open(path, "w") as file:  # noqa: PTH123  # as torch opens it
        file.write(text)
    ring.drain()
    assert os.stat(path).st_blocks * 512 <= 4096  # noqa: PTH116  # of the file in memory
    keeper.close()
    assert capfd.readouterr().err == text
    output = read_output(page)
    assert output is not None
    assert text.endswith(output)
    assert len(output) > MAX_OUTPUT_BYTES - 20


@pytest.mark.distributed
def test_a_rank_writes_on_when_its_launcher_is_gone(root: Path) -> None:
    code = (
        "import os, subprocess, sys; from pathlib import Path\n"
        "from lockstep.launch.last_output import OutputKeeper\n"
        "kept, path = OutputKeeper().open(Path(sys.argv[1]))\n"
        "rank = ('import sys, time; time.sleep(0.5); print(1 << 20, file=sys.stderr);'\n"
        '        \'open(sys.argv[1], "w").write("wrote on")\')\n'
        "subprocess.Popen([sys.executable, '-c', rank, sys.argv[2]], stderr=open(path, 'w'))\n"
        "os._exit(0)\n"
    )
    report = root / "report"
    subprocess.run(
        [sys.executable, "-c", code, str(root / "rank-00000.page"), str(report)], check=True
    )
    # The pipe of the rank's stdout is that of this process: it ends with the rank.
    subprocess.run(
        ["sh", "-c", f"for _ in $(seq 600); do [ -s {report} ] && break; sleep 0.1; done"],
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert report.read_text() == "wrote on"
    assert json.dumps(read_output(root / "rank-00000.page")) == '""'


@pytest.mark.parametrize(
    "unit", [b"0123456789abcdef", b"\x00\xff\x1b[2J", b"a-", b"\r", b"token ", b"\n", b"eyJ"]
)
def test_no_output_holds_the_launcher_or_grows_in_its_memory(root: Path, unit: bytes) -> None:
    descriptor = os.memfd_create("stderr")
    page, forwarded = root / "rank-00000.page", []

    def forward(data: bytes, _wait_seconds: float) -> int:
        forwarded.append(data)
        return len(data)

    output = KeptOutput(page, descriptor, forward)
    text = unit * ((2 << 20) // len(unit))
    begin = time.thread_time()
    for at in range(0, len(text), 1 << 20):
        os.write(descriptor, text[at : at + (1 << 20)])
        output.drain()
    os.write(descriptor, b"\nthe last line, pwd=hunter2")
    output.drain(at_end=True)
    assert time.thread_time() - begin < 3
    assert b"".join(forwarded) == text + b"\nthe last line, pwd=hunter2"
    text_read = read_output(page)
    assert text_read is not None
    assert text_read.endswith("the last line, pwd=***")


def test_a_secret_in_a_line_that_is_cut_is_not_kept(root: Path) -> None:
    descriptor = os.memfd_create("stderr")
    page = root / "rank-00000.page"
    output = KeptOutput(page, descriptor, lambda data, _wait: len(data))
    for data in (b"x" * 200_000, b" token=hf_abcdef", b"ghijklmnop" * 3, b"\nnext\n"):
        os.write(descriptor, data)
        output.drain()
    output.drain(at_end=True)
    text_read = read_output(page)
    assert text_read is not None
    assert "abcdef" not in text_read
    assert "ghijk" not in text_read
    assert text_read.endswith("next\n")


def test_output_that_nobody_reads_is_bounded_and_what_is_left_out_is_stated(root: Path) -> None:
    descriptor = os.memfd_create("stderr")
    page, room, forwarded = root / "rank-00000.page", [0], []

    def forward(data: bytes, _wait_seconds: float) -> int:
        taken = min(len(data), room[0])
        forwarded.append(data[:taken])
        room[0] -= taken
        return taken

    output = KeptOutput(page, descriptor, forward)
    block = b"line of the rank\n" * 61_681
    for _ in range(100):
        os.write(descriptor, block)
        output.drain()
    assert os.fstat(descriptor).st_blocks * 512 < 80 << 20
    room[0] = 1 << 30
    output.drain(at_end=True)
    text = b"".join(forwarded)
    assert b"bytes of a rank's stderr are left out here\n" in text
    assert text.endswith(block)
    assert len(text) < 70 << 20
