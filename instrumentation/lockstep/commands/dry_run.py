"""Runs a program with the proposed lines of one of its files, and shows the phases that they see.

The file on disk stays as it is: each rank takes the edited text where Python reads the file, under
the same path, so imports, packages and files beside it are those of the program.
"""

import linecache
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from lockstep.monitor.first_steps import FirstSteps
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.files.jobs import pages_of
from lockstep_records.page.reader import Page, read_rows
from lockstep_records.page.replicas import unseen_in

_POLL_SECONDS = 0.1
_STOP_SECONDS = 60.0  # torch's launcher gives ranks 30
_LAST_LINES = 15


def run_with_lines(script: Path, edited: str, steps: int, command: Sequence[str]) -> list[str]:
    """What the ranks of an edited script show of their first steps, as lines of text.

    The program, of ``lockstep run``'s command or the script alone, is stopped after ``steps`` of
    rank 0. A ValueError has the end of its output where no rank made a step.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-", dir=_memory()) as name:
        folder = Path(name)
        text, output = folder / "edited", folder / "output"
        text.write_text(edited, encoding="utf-8")
        runner = ["-m", __name__, str(text), str(script.resolve()), str(steps)]
        arguments = [*_options_and_program(script, command, runner)]
        environment = os.environ | {"LOCKSTEP_DIR": str(folder), "LOCKSTEP_LEDGER": ""}
        lockstep = [sys.executable, "-m", "lockstep_cli.main", "run", *arguments]
        with output.open("wb") as file:
            process = subprocess.Popen(
                lockstep, env=environment, stdout=file, stderr=file, start_new_session=True
            )
        try:
            pages = _wait_for_steps(folder, process, steps)
        finally:
            _stop(process)
        num_steps = max((page.state["steps"] for page in pages), default=0)
        end = output.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        if not num_steps:
            raise ValueError(
                "\n  ".join(["the program made no step; the end of its output:", *end])
            )
        ended = f"the program ended after {num_steps} steps; the end of its output:"
        return [*_describe(pages, steps), *([ended, *end] if num_steps < steps else [])]


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # pages need a tmpfs


def _options_and_program(
    script: Path, command: Sequence[str], runner: Sequence[str]
) -> Iterator[str]:
    """The arguments of ``lockstep run`` with the runner in front of the program."""
    from lockstep.launch.run import run  # noqa: PLC0415  # ranks import this file, and start nothing

    command = [*command] or [str(script)]
    given = run.make_context("run", [*command]).params
    rest = [given["program"], *given["arguments"]]
    options = command[: len(command) - len(rest)]
    flags = {"-m", "--module"} if given["module"] else set()
    yield from (option for option in options if option not in flags)
    yield from runner
    yield from [*(["-m"] if given["module"] else ["-f"]), *rest]


def _wait_for_steps(folder: Path, process: "subprocess.Popen[bytes]", steps: int) -> list[Page]:
    """The pages once rank 0 has made the steps and judged them, or the program has ended."""
    while True:
        has_ended = process.poll() is not None
        pages = [page for attempt in folder.glob("jobs/*/0") for page in pages_of(attempt)]
        is_judged = pages and pages[0].state["steps"] >= steps
        if has_ended or (is_judged and pages[0].periodic["unphased_ratio"] is not None):
            return pages
        time.sleep(_POLL_SECONDS)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        process.kill()
        process.wait()


def _describe(pages: Sequence[Page], steps: int) -> Iterator[str]:
    """A row a rank of the median milliseconds in each phase; then what is told, and missed."""
    yield "median milliseconds of a step, without the first:"
    yield "  ".join(["rank", "steps", "   step", *(f"{name:>10}" for name in STEP_PHASES)])
    for page in pages:
        rows = [*read_rows(page)][:steps]
        timed = rows[1:] or rows
        columns = [[row["seconds"] for row in timed]]
        columns += [[row["phase_seconds"][name] for row in timed] for name in STEP_PHASES]
        median, *phases = (1e3 * statistics.median(column or [0.0]) for column in columns)
        numbers = "  ".join(f"{value:10.1f}" for value in phases)
        yield f"{page.identity['rank']:4}  {len(rows):5}  {median:7.1f}  {numbers}"
        numbers_seen = (
            f"loss in {sum(row['loss'] is not None for row in rows)}",
            *(f"{sum(row[name] for row in rows)} {name}" for name in ("samples", "tokens")),
            f"{page.state['checkpoints']['ok']} checkpoints",
        )
        yield f"      told: {', '.join(numbers_seen)}"
    hints = dict.fromkeys(str(hint) for page in pages for hint in unseen_in(page.periodic))
    yield from hints or ["nothing is missing"]


def _code_of(text: str, path: str) -> CodeType:
    # What torch.jit and tracebacks read of the file's lines.
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return compile(text, path, "exec", dont_inherit=True)


def _run_program(text: str, script: str, kind: str, program: str, arguments: list[str]) -> None:
    """In a rank: runs a script (``-f``) or a module (``-m``), one of whose files has this text."""
    original = SourceFileLoader.get_code
    sys.dont_write_bytecode = True  # that of the edited text is not the file's

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        is_edited = os.path.realpath(loader.path) == script
        return _code_of(text, loader.path) if is_edited else original(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]  # in this process alone
    sys.argv = [program, *arguments]
    if kind == "-m":
        import runpy  # noqa: PLC0415  # for modules alone

        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(program))  # noqa: PTH100, PTH120  # a link stays one
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = program
    code = SourceFileLoader("__main__", program).get_code("__main__")
    assert code is not None
    exec(code, vars(main))  # noqa: S102  # the user's own program


if __name__ == "__main__":
    _edited, _script, _steps, _kind, _program, *_arguments = sys.argv[1:]
    FirstSteps.judged_at_step = min(FirstSteps.judged_at_step, int(_steps))
    _run_program(Path(_edited).read_text(encoding="utf-8"), _script, _kind, _program, _arguments)
