"""Prints the lines that instrument a training script, and what cannot be seen in it."""

import ast
import difflib
import linecache
import os
import re
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

import click

from lockstep.commands.training_loop import TrainingLoop
from lockstep.commands.training_script import TrainingScript, last_name, name_of
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


_BATCH = re.compile(r"(get|next|fetch|load|sample|draw|make)_?\w*batch|(get|next|fetch)_?data$")
_IDS = re.compile(r"(?i:(input_|token_?)?ids$|tokens$)")
_MESH = re.compile(r"init_device_mesh$|DeviceMesh$|build_mesh$")
_PAIRWISE = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}
_COLLECTIVES = re.compile(r"(all_reduce|all_gather\w*|broadcast|average\w*)$")
_SPAWNS = re.compile(r"multiprocessing\.(spawn|Process)|TorchTrainer$")
_SCHEDULE = re.compile(r"torch\.distributed\.pipelining\b.*\.Schedule\w+$")
_TRAINER_LINES = {
    "transformers": "{0}.add_callback(LockstepCallback({0}))",
    "lightning": "{0}.callbacks.append(LockstepCallback())",
}
# Libraries with a loop of their own, and what sees it.
_LIBRARIES = {
    "pytorch_lightning": "import lightning.pytorch, for which lockstep.integrations.lightning is",
    "torchtitan": "docs/examples/torchtitan_metrics.py attaches where it counts its metrics",
    "megatron": "docs/examples/megatron_timers.py attaches to its timers",
}


class ProposedLines:
    """What to add to a script, with a sentence on each need that cannot be seen; or ValueError."""

    def __init__(self, script: TrainingScript) -> None:
        self._script, self.notes = script, list[str]()
        self._added: list[tuple[int, int, str]] = []
        self._inserted: list[tuple[int, int, str]] = []
        self._wrapped: list[range] = []
        self._called = {script.origin(call) for call in script.calls}
        self._packages = {name.partition(".")[0] for name in script.imports.values()}
        if "lockstep.attach" in self._called:
            self.notes.append("the script attaches already; nothing is to be added")
            return
        for statement, name, value in script.assignments:
            package, _, kind = script.origin(value).replace("trl", "transformers").partition(".")
            if (
                package in _TRAINER_LINES
                and kind.endswith("Trainer")
                and isinstance(value, ast.Call)
            ):
                self._import(f"from lockstep.integrations.{package} import LockstepCallback")
                self._add(_TRAINER_LINES[package].format(name), statement)
                self.notes.append(f"the loop is inside {package}: its callback sees the steps")
                return
        self._edit_loop()

    def _edit_loop(self) -> None:
        script = self._script
        try:
            loop = TrainingLoop(script)
        except ValueError as error:
            raise ValueError(f"{error}; {self._remedy()}") from error
        models, optimizers = map(_write_list, (loop.models, loop.optimizers))
        built = {script.origin(value): name for _, name, value in script.assignments}
        self._import("import lockstep")
        schedules = [f"schedule={name}" for kind, name in built.items() if _SCHEDULE.match(kind)]
        given = [models, optimizers][: 2 if loop.optimizers else 1]
        monitor = self._attach(loop, [*given, *schedules])
        arguments = [*self._loss_argument(loop), *self._count_arguments(loop)]
        self._add(f"{loop.step_condition()}{monitor}.step({', '.join(arguments)})", loop.end)
        evaluations = [*loop.evaluations()]
        self._mark_data(loop, monitor, evaluations)
        for statement in evaluations:
            self._wrap(statement, f'with {monitor}.phase("eval"):')
        for block in loop.shares(_COLLECTIVES):
            self._add(f"{monitor}.synced()", block.body[-1])
            self.notes.append(
                f"line {block.lineno} shares parameters now and then: a round of steps"
            )
        if self._is_program(loop):
            self._add(f"{monitor}.close()", loop.loops[-1])
        self.notes += [f"line {n} steps in a loop of its own, in no step" for n in loop.other_lines]
        if not loop.models:
            self.notes.append("which model does the loop train? give it to attach first")
        self.notes.append("checkpoints by torch.save, safetensors, pickle and DCP need no line")
        self.notes.append(self._start(loop))

    def _start(self, loop: TrainingLoop) -> str:
        """How the script is started with its lines."""
        script = self._script
        if self.spawns:
            return "start it as before"
        program = script if self._is_program(loop) else next(script.starters(), None)
        if program is None:
            return (
                "start the script that imports it, by lockstep run; the monitor closes at its end"
            )
        module = f"-m {name}" if (name := program.module()) else os.path.relpath(program.path)
        return f"start it by lockstep run --nproc-per-node N {module}"

    @property
    def spawns(self) -> bool:
        """Whether the script starts its ranks itself."""
        return any(map(_SPAWNS.search, self._called))

    def _is_program(self, loop: TrainingLoop) -> bool:
        script = self._script
        return script.is_started() or script.scope(loop.loops[-1]) is script.tree

    def _loss_argument(self, loop: TrainingLoop) -> list[str]:
        """What ``step`` is told of the loss, and the question where that is not seen."""
        loss, why = loop.loss()
        self.notes += [why] if why else []
        if not loss:
            self.notes.append("which loss has a step? give it to step as loss=")
        return [f"loss={loss}"] if loss else []

    def _count_arguments(self, loop: TrainingLoop) -> list[str]:
        """What ``step`` is told of samples and tokens, where no loader's batches tell it."""
        fetched = self._fetches(loop)
        names = [n for s, n, v in self._script.assignments if n and s in fetched]
        if not names:
            has_iterator = "next" in map(last_name, loop.calls_inside())
            batches = getattr(loop.loops[0], "iter", None)
            if not has_iterator and (batches is None or last_name(batches) == "range"):
                self.notes.append(
                    "samples and tokens are counted in batches of torch's DataLoader and of "
                    "prepare; of others give step samples=, and tokens= without padding"
                )
            return []
        first, inner = names[0], self._script.loops(fetched[0])
        inner = inner[: inner.index(loop.loops[0])]
        repeats = getattr(getattr(inner[0], "iter", None), "args", []) if inner else []
        times = "".join(f"{ast.unparse(repeat)} * " for repeat in repeats[-1:])
        tokens = [f"tokens={times}{first}.numel()"] if _IDS.search(first) else []
        return [f"samples={times}len({first})", *tokens]

    def _fetches(self, loop: TrainingLoop) -> list[ast.stmt]:
        """The statements of the step that fetch a batch by a function."""
        script, found = self._script, list[ast.stmt]()
        for call in loop.calls_inside():
            if loop.loops[0] in script.ancestors(call) and _BATCH.match(last_name(call)):
                found.append(script.statement(call))
        return found

    def _remedy(self) -> str:
        """Where the loop may be that the script does not have."""
        for package in self._packages & {*_LIBRARIES}:
            return f"it is inside {package}: {_LIBRARIES[package]}"
        trees = self._script.project_files().items()
        near = ", ".join(os.path.relpath(file) for file, tree in trees if _trains(tree))
        by_hand = "or attach before it, and call step where a step ends"
        return f"give the file with the loop{f', perhaps {near}' if near else ''}, {by_hand}"

    def _attach(self, loop: TrainingLoop, given: list[str]) -> str:
        """Adds the line that creates the monitor; returns its name in the loop."""
        script, home = self._script, self._script.scope(loop.setup)
        words = {n.id for n in script.parents if isinstance(n, ast.Name)} | {*script.imports}
        monitor = "lockstep_monitor" if "monitor" in words else "monitor"
        if any(script.scope(call) is not home for call in loop.calls):
            if {*map(script.class_around, loop.calls)} == {script.class_around(loop.setup)} != {""}:
                monitor = f"self.{monitor}"
            elif home is not script.tree:
                self._add(f"global {monitor}", loop.setup)
        kinds = {name.rpartition(".")[2] for name in self._called}
        given += self._mesh_argument(home, kinds)
        if "init_rpc" in kinds:
            given = []
            self.notes.append(
                "other processes do the work, which is not seen: put their calls into "
                'phase("forward"), phase("backward") and phase("optimizer")'
            )
        attach = f"{monitor} = lockstep.attach({', '.join(given)})"
        if loop.is_given:
            self._added.append(
                (loop.setup.lineno - 1, len(self._added), f"{self._indent_of(loop.setup)}{attach}")
            )
        else:
            self._add(attach, loop.setup)
        return monitor

    def _mesh_argument(self, home: ast.AST, kinds: set[str]) -> list[str]:
        """The coordinates of the rank that attach is given, or the question for them."""
        script = self._script
        mesh = [
            name
            for statement, name, value in script.assignments
            if _MESH.search(script.origin(value))
            and (script.scope(statement) is home or name.startswith("self."))
        ]
        files = script.project_files().values()
        in_project = {last_name(n) for tree in files for n in ast.walk(tree)} | kinds
        if mesh:
            return [f"mesh={mesh[-1]}"]
        if "parallelize_module" in kinds:
            self.notes.append("attach needs mesh=, the coordinates of the rank by axis, such as tp")
        elif in_project & _PAIRWISE:
            self.notes.append(
                'are ranks stages of a pipeline? then attach needs mesh={"pp": the stage}'
            )
        return []

    def _mark_data(self, loop: TrainingLoop, monitor: str, evaluations: list[ast.stmt]) -> None:
        """Marks the wait for each batch, by the loader of the loop or the call that fetches it."""
        script, batches = self._script, loop.loops[0]
        loader = None if isinstance(batches, ast.While) else batches.iter
        while isinstance(loader, ast.Call) and last_name(loader) in {"enumerate", "tqdm", "track"}:
            given = (*loader.args, *(keyword.value for keyword in loader.keywords))
            loader = given[0] if given else None
        if loader is not None and last_name(loader) not in {"range", "trange", "count"}:
            self._prepare(loader, monitor)
        for call in loop.calls_inside():
            around = {*script.ancestors(call)}
            if last_name(call) == "next" and batches in around and around.isdisjoint(evaluations):
                iterator = call.args[0]
                if name_of(iterator) or last_name(iterator) == "iter":
                    self._prepare(iterator, monitor)
        for statement in (*self._fetches(loop), *loop.rollouts()):
            if not {statement, *script.ancestors(statement)} & {*evaluations}:
                self._wrap(statement, f'with {monitor}.phase("data"):')

    def _prepare(self, loader: ast.expr, monitor: str) -> None:
        """Has the monitor time and count the batches of a loader, or of its iterator."""
        self._inserted.append((loader.lineno, loader.col_offset, f"{monitor}.prepare("))
        self._inserted.append((loader.end_lineno or 0, loader.end_col_offset or 0, ")"))

    def _import(self, line: str) -> None:
        """Adds an import after those with which the script begins."""
        leading: ast.stmt | None = None
        for statement in self._script.tree.body:
            is_docstring = leading is None and isinstance(statement, ast.Expr)
            if not is_docstring and not isinstance(statement, ast.Import | ast.ImportFrom):
                break
            leading = statement
        self._add(line, leading)

    def _indent_of(self, statement: ast.stmt) -> str:
        if getattr(self._script.parents[statement], "lineno", 0) == statement.lineno:
            raise ValueError(
                f"line {statement.lineno} begins a block and holds what is in it; "
                "put each statement on a line of its own"
            )
        line = self._script.lines[statement.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def _add(self, text: str, after: ast.stmt | None) -> None:
        """Adds a line after a statement, in its block; at the top without a statement."""
        indent = self._indent_of(after) if after else ""
        self._added.append(((after and after.end_lineno) or 0, len(self._added), indent + text))

    def _wrap(self, statement: ast.stmt, header: str) -> None:
        """Puts a statement into a block, but where it is in one of these."""
        if not any(statement.lineno in lines for lines in self._wrapped):
            line, text = statement.lineno - 1, self._indent_of(statement) + header
            self._added.append((line, len(self._added), text))
            self._wrapped.append(range(line, statement.end_lineno or line))

    def apply(self) -> list[str]:
        """The lines of the script with those that are proposed."""
        lines = [*self._script.lines]
        for number, column, text in sorted(self._inserted, reverse=True):
            raw = lines[number - 1].encode()  # columns count its bytes
            lines[number - 1] = (raw[:column] + text.encode() + raw[column:]).decode()
        texts = [n for n in self._script.parents if isinstance(n, ast.JoinedStr | ast.Constant)]
        inside = {n for text in texts for n in range(text.lineno, text.end_lineno or 0)}
        for i in {i for block in self._wrapped for i in block} - inside:
            unit = "\t" if lines[i].startswith("\t") else "    "
            lines[i] = unit + lines[i] if lines[i].strip() else lines[i]
        # Where several follow one line, what ends a deeper block comes first.
        depths = [(number, -len(t) + len(t.lstrip()), n, t) for number, n, t in self._added]
        for number, _, _, text in sorted(depths, reverse=True):
            lines.insert(number, text + ("\r" if lines[0].endswith("\r") else ""))
        return lines


def _trains(tree: ast.Module) -> bool:
    """Whether a file may have the loop."""
    return bool({"backward", "optimizer_step"} & {*map(last_name, ast.walk(tree))})


def _write_list(names: list[str]) -> str:
    """One name as it is, several as a list."""
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]" if names else "None"


def _check_run(proposed: ProposedLines, steps: int | None, command: Sequence[str]) -> None:
    """Raises ValueError where the program cannot be run with the lines."""
    if command and steps is None:
        raise ValueError(f"{command[0]!r} is for --run; a script is read without its arguments")
    if steps and proposed.spawns:
        raise ValueError("it starts its ranks itself, and --run cannot hand them its lines")


@click.command()
@click.option(
    "--run",
    "steps",
    metavar="STEPS",
    type=click.IntRange(1),
    help="Run the program with the lines for so many steps, and show the phases that they see.",
)
@click.argument("path", metavar="SCRIPT", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def instrument(path: Path, steps: int | None, command: tuple[str, ...]) -> None:
    """Print the lines to add to SCRIPT, which is read and stays as it is.

    They are a diff with line numbers, which patch applies. What cannot be seen in the script is
    said on stderr. With --run the program runs as always, its files included; COMMAND, after --,
    is what lockstep run is given, SCRIPT where left out.
    """
    try:
        script = TrainingScript(path)
        proposed = ProposedLines(script)
        lines = proposed.apply()
        _check_run(proposed, steps, command)
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"SCRIPT {str(path)!r}: {error}") from error
    colours = {"+": "green", "-": "red", "@": "cyan"}
    names = str(path), str(path)
    for line in difflib.unified_diff(script.lines, lines, *names, n=1, lineterm=""):
        click.echo(click.style(line, fg=colours.get(line[0])))
    for note in proposed.notes:
        click.echo(f"lockstep: {note}", err=True)
    if steps:
        try:
            click.echo("\n".join(run_with_lines(path, "\n".join(lines), steps, command)))
        except ValueError as error:
            raise click.ClickException(str(error)) from error
