"""A training script as its syntax tree."""

import ast
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_MAX_BYTES = 1 << 20
_MAX_FILES = 100  # of a folder
_PROJECT_DEPTH = 3  # folders up from the script in which a module of the project may be


Assignment = tuple[ast.stmt, str, ast.expr]
"""Statement, name and value; of a call with as many results as arguments each has its own, of
another the first is taken for its result."""


def name_of(expression: ast.AST | None) -> str:
    """The dotted name that an expression is, such as ``self.model``; empty for any other."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    return ".".join([expression.id, *parts[::-1]]) if isinstance(expression, ast.Name) else ""


class TrainingScript:
    """A script that was read and never runs.

    Attributes:
        lines: its lines without their ends.
        parents: what each node stands in; the nodes come from the outside in.
        calls: all calls, from top to bottom.
        callers: the calls of each function of the script; under None those of other functions.
        imports: full names by the names that they are imported as.

    Raises:
        ValueError: the file is not a script that this Python reads; the text says why.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._imported: dict[Path, ast.Module] = {}
        self.lines, self.tree = _parse(path)
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        calls = [node for node in self.parents if isinstance(node, ast.Call)]
        self.calls = sorted(calls, key=lambda call: (call.end_lineno, call.end_col_offset))
        self._classes = {n.name: n for n in self.parents if isinstance(n, ast.ClassDef)}
        functions = [node for node in self.parents if isinstance(node, Function)]
        self._functions = {(self.class_around(f), f.name): f for f in functions}
        self.imports: dict[str, str] = {}
        for node in self.parents:
            if isinstance(node, ast.Import):
                tops = (a.name if a.asname else a.name.partition(".")[0] for a in node.names)
                self.imports |= {a.asname or t: t for a, t in zip(node.names, tops, strict=True)}
            elif isinstance(node, ast.ImportFrom):
                self.imports |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        self.assignments = sorted(self._assignments(), key=lambda assigned: assigned[0].lineno)
        self.callers = defaultdict[ast.AST | None, list[ast.Call]](list)
        for call in self.calls:
            self.callers[self._defined(call)].append(call)

    def _assignments(self) -> Iterator[Assignment]:
        for node in self.parents:
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                yield node, name_of(node.target), node.value
            for target in node.targets if isinstance(node, ast.Assign) else ():
                assert isinstance(node, ast.Assign)
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                for name, value in zip(names, _results(node.value, len(names)), strict=False):
                    yield node, name_of(name), value

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, from the inside out."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that a node stands in; the module outside of functions."""
        return next((a for a in self.ancestors(node) if isinstance(a, Function)), self.tree)

    def class_around(self, node: ast.AST) -> str:
        """Name of the class that a node stands in; empty outside of classes."""
        return next((a.name for a in self.ancestors(node) if isinstance(a, ast.ClassDef)), "")

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that a node is or stands in."""
        return next(n for n in (node, *self.ancestors(node)) if isinstance(n, ast.stmt))

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node in its function, from the inside out."""
        around = [ancestor for ancestor in self.ancestors(node) if isinstance(ancestor, Loop)]
        return [loop for loop in around if self.scope(loop) is self.scope(node)]

    def function_of(self, call: ast.Call) -> Function | None:
        """The function that a call runs, of the script or of another file of the project."""
        defined = self._defined(call)
        return defined if isinstance(defined, Function) else self.imported_function(call)

    def _defined(self, call: ast.Call) -> ast.AST | None:
        """The function or method of this script that a call runs."""
        receiver, _, method = name_of(call.func).rpartition(".")
        if receiver == "self" or (method and not receiver):
            return self._functions.get((receiver and self.class_around(call), method))
        if not isinstance(call.func, ast.Attribute):
            return None
        built = [value for _, name, value in self.assignments if name == receiver != ""]
        names = {name_of(v.func) for v in (*built, call.func.value) if isinstance(v, ast.Call)}
        found = (self._functions.get((name, call.func.attr)) for name in names & {*self._classes})
        return next(filter(None, found), None)

    def imported_function(self, call: ast.Call) -> Function | None:
        """The function of another file of the project that a call runs; None without one."""
        module, _, name = self.origin(call).rpartition(".")
        functions = (f for f in self.project_file(module)[1].body if isinstance(f, Function))
        return next((function for function in functions if function.name == name), None)

    def is_started(self) -> bool:
        """Whether the file is a program, and no module of one."""
        own = {name for _, name in self._functions} | {*self._classes}
        for statement in self.tree.body:
            names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
            if isinstance(statement, ast.If) and "__name__" in names:
                return True
            if isinstance(statement, ast.Expr | ast.Assign | Loop) and names & own:
                return True
        return False

    def starters(self) -> Iterator["TrainingScript"]:
        """The programs beside the file, or a folder up, that import it."""
        folders = self.path.absolute().parents[:2]
        for path in (p for folder in folders for p in sorted(folder.glob("*.py"))[:_MAX_FILES]):
            with suppress(OSError, ValueError, RecursionError):  # no script that can be read
                script = TrainingScript(path)
                if script.is_started() and self.path.absolute() in script.project_files():
                    yield script

    def module(self) -> str:
        """The name by which a program inside a package is started; empty for any other."""
        folder, parts = self.path.absolute().parent, [self.path.stem]
        while (folder / "__init__.py").is_file():
            parts.insert(0, folder.name)
            folder = folder.parent
        imported = {name.partition(".")[0] for name in self.imports.values()}
        return ".".join(parts) if imported & {parts[0], "None"} - {self.path.stem} else ""

    def project_file(self, module: str) -> tuple[Path | None, ast.Module]:
        """The file of the project that a module is, and its tree; None and nothing without one."""
        parts = [part for part in module.split(".") if part not in {"", "None"}]
        for folder in self.path.absolute().parents[: _PROJECT_DEPTH if parts else 0]:
            file = folder.joinpath(*parts).with_suffix(".py")
            if file.is_file() and file.stat().st_size <= _MAX_BYTES:
                if file not in self._imported:
                    try:
                        self._imported[file] = _parse(file)[1]
                    except (OSError, ValueError):  # what it holds stays unknown
                        self._imported[file] = ast.Module([], [])
                return file, self._imported[file]
        return None, ast.Module([], [])

    def project_files(self) -> dict[Path, ast.Module]:
        """The files of the project that the script imports from, with their trees."""
        modules = {m for name in self.imports.values() for m in (name, name.rpartition(".")[0])}
        found = map(self.project_file, sorted(modules))
        return {file: tree for file, tree in found if file is not None}

    def origin(self, value: ast.AST, seen: tuple[str, ...] = ()) -> str:
        """The full name of what is called; of a class of the script that of its first base."""
        name = name_of(value.func if isinstance(value, ast.Call) else value)
        root, dot, rest = name.partition(".")
        bases = self._classes[root].bases if root in self._classes and root not in seen else []
        return (
            name_of(bases[0]) and self.origin(bases[0], (*seen, root))
            if bases
            else self.imports.get(root, root) + dot + rest
        )


def _parse(path: Path) -> tuple[list[str], ast.Module]:
    with path.open("rb") as file:
        source = file.read(_MAX_BYTES + 1)
    if len(source) > _MAX_BYTES:
        raise ValueError(f"it is longer than {_MAX_BYTES} bytes; give the script with the loop")
    if path.suffix == ".ipynb":
        raise ValueError("it is a notebook; export it by jupyter nbconvert --to script")
    try:
        with warnings.catch_warnings(action="ignore"):  # of the script's own text
            text, tree = source.decode("utf-8-sig"), ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"this Python cannot read it: {line}{why}; mend that first") from error
    if not tree.body:
        raise ValueError("it has no statement; give the script with the training loop")
    return text.split("\n"), tree


def last_name(node: ast.AST) -> str:
    """The last part of what a call calls, such as ``step``; empty for anything else."""
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", "")))


def calls_in(tree: ast.AST) -> list[ast.Call]:
    """All calls in a tree."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _results(value: ast.expr, number: int) -> list[ast.expr]:
    """What each of several names is assigned."""
    if isinstance(value, ast.Tuple):
        return value.elts
    if isinstance(value, ast.Call) and len(value.args) == number > 1 and not value.keywords:
        return [ast.copy_location(ast.Call(value.func, [a], []), value) for a in value.args]
    return [value]
