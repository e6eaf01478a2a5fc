"""The house rules that a machine can check, one finding a line; ``make check`` runs it."""

import ast
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lockstep_catalogue import METRICS, RECORDED

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
COMPONENTS = [
    REPOSITORY / folder
    for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]
OTHER_FOLDERS = ("bench", "docs/writers", "tests")
MAX_LINES = 500
MAX_ENTRIES = 24
MAX_FUNCTION_LINES = 40
TRAINING_LOOP = "_train"  # read from top to bottom, it may be as long as a training step is
NAMES = frozenset({metric.name for metric in METRICS} | {series.name for series in RECORDED})
LIKE_A_NAME = re.compile(r"\blockstep_(train|gpu|nvlink|pcie|fabric|host|agent|ledger)_\w")
VAGUE_FILES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
SILENCER = re.compile(r"# (?:noqa|type: ignore)\S*(?P<codes>[^#\n]*)(?P<reason># \S.*)?$")
# A name says what its value is, never that somebody told or made it.
EMPTY_NAMES = frozenset((
    "told", "said", "one", "made", "there", "who", "beside", "asked", "shown", "kept", "came",
    "went", "alone", "together", "whole", "middle", "place", "wanted", "known", "hear", "tell",
    "beat", "look", "mark", "cut",
))  # fmt: skip
EMPTY_PARTS = frozenset({"told", "said", "tell", "untold"})  # of longer names too
# "on_" is left out: frameworks and parsers name the callbacks that they call.
WITHOUT_A_VERB = re.compile(
    r"_?(of|by|in|after|before|at|for|over|under|beside|around|among|within|without)_[a-z]"
)
MANNERED = re.compile(
    r"\b(is no [a-z]|are no [a-z]+s\b|befell|befall|dearest|in vain|gets? on\b|comes? by itself"
    r"|stands for|cannot be had|was had|were had)",
    re.IGNORECASE,
)
OPENING_SENTENCE = re.compile(r"[A-Z`][^\n]+[.:!?]")
CATCHES_ALL_IN = frozenset({
    "collector.py", "guard.py",
    # In the agent: a job's files cost no other job, a family no other, a tick not the next one.
    "page_store.py", "text.py", "sampler.py",
    # In the ledger: one event of a stranger must not hold up the rest of its batch.
    "transaction.py",
})  # fmt: skip


@dataclass(frozen=True)
class SourceFile:
    """A Python file of the repository; library is what belongs to a component."""

    path: Path
    text: str
    is_library: bool = True

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree; each rule walks over them."""
        return list(ast.walk(self.tree))


Finding = tuple[int, str]
"""Line and value."""
Rule = Callable[[SourceFile], Iterator[Finding]]


def find_quoted_metrics(file: SourceFile) -> Iterator[Finding]:
    """No metric name stands in quotes outside the catalogue; docstrings may name one."""
    if {"lockstep_catalogue", "tests"} & set(file.path.parts):
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in file.nodes
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in file.nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings:
            assert isinstance(node, ast.Constant)
            text = str(node.value)
            if LIKE_A_NAME.search(text) or any(name in text for name in NAMES):
                yield node.lineno, text


def _declares_only(file: SourceFile) -> bool:
    """Whether a file of the catalogue is data: nothing in it branches or loops."""
    flow = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.Match)
    is_of_catalogue = "lockstep_catalogue" in file.path.parts
    return is_of_catalogue and not any(isinstance(node, flow) for node in file.nodes)


def find_long_files(file: SourceFile) -> Iterator[Finding]:
    """A file tells one story in under 500 lines, data aside, and its name says which."""
    lines = file.text.splitlines()
    if len(lines) >= MAX_LINES and not _declares_only(file):
        yield len(lines), f"{len(lines)} lines"
    if file.path.stem in VAGUE_FILES:
        yield 1, file.path.stem
    for number, line in enumerate(lines, 1):
        if "TO" + "DO" in line:
            yield number, line.strip()


def _bound_names(file: SourceFile) -> Iterator[Finding]:
    """Every name that a file gives to something: parameters, variables, attributes, functions."""
    for node in file.nodes:
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def find_empty_names(file: SourceFile) -> Iterator[Finding]:
    """Every name says what its value is; the sentences that name tests do not count."""
    for line, name in _bound_names(file):
        is_empty = name.strip("_") in EMPTY_NAMES or EMPTY_PARTS & set(name.lower().split("_"))
        if is_empty and not name.startswith("test_"):
            yield line, name


def find_names_without_a_verb(file: SourceFile) -> Iterator[Finding]:
    """A function of a component is named by what it does; a property by what it is."""
    if not file.is_library:
        return
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
            is_property = bool(decorators & {"property", "cached_property"})
            if WITHOUT_A_VERB.match(node.name) and not is_property:
                yield node.lineno, node.name


def find_mannered_prose(file: SourceFile) -> Iterator[Finding]:
    """Docstrings, comments and strings of a component are plain present-tense English."""
    if not file.is_library:
        return
    for number, line in enumerate(file.text.splitlines(), 1):
        if phrase := MANNERED.search(line):
            yield number, phrase[0]


def find_unopened_modules(file: SourceFile) -> Iterator[Finding]:
    """A module opens with one sentence that says what it is for."""
    if file.is_library and not OPENING_SENTENCE.match(ast.get_docstring(file.tree) or ""):
        yield 1, "no opening sentence"


def find_long_functions(file: SourceFile) -> Iterator[Finding]:
    """A function fits on a screen."""
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno
            if length >= MAX_FUNCTION_LINES and node.name != TRAINING_LOOP:
                yield node.lineno, f"{node.name} has {length} lines"


def find_unexplained_silencers(file: SourceFile) -> Iterator[Finding]:
    """Whoever silences a check says why on the same line."""
    for number, line in enumerate(file.text.splitlines(), 1):
        silenced = SILENCER.search(line)
        if silenced is not None and not silenced["reason"]:
            yield number, line.strip()


def find_catch_alls(file: SourceFile) -> Iterator[Finding]:
    """All errors are caught around a collector and around the recorder, and nowhere else."""
    if not file.is_library or file.path.name in CATCHES_ALL_IN:
        return
    for node in file.nodes:
        if isinstance(node, ast.ExceptHandler):
            names = ast.walk(node.type) if node.type else ()
            broad = {"Exception", "BaseException"}
            if node.type is None or any(isinstance(n, ast.Name) and n.id in broad for n in names):
                yield node.lineno, "catches all errors"


RULES: tuple[Rule, ...] = (
    find_quoted_metrics, find_long_files, find_empty_names, find_unopened_modules,
    find_long_functions, find_unexplained_silencers, find_catch_alls,
    find_names_without_a_verb, find_mannered_prose,
)  # fmt: skip


def list_files() -> list[SourceFile]:
    """Every Python file of the components, of bench and of tests."""
    folders = [(folder, True) for folder in COMPONENTS]
    folders += [(REPOSITORY / name, False) for name in OTHER_FOLDERS]
    return [
        SourceFile(path, path.read_text(encoding="utf-8"), is_library)
        for folder, is_library in folders
        for path in sorted(folder.rglob("*.py"))
    ]


def find_full_folders(root: Path) -> Iterator[tuple[Path, int]]:
    """A folder of code is seen at a glance; recordings and documents are lists and may be long."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted({*folders} - {"fixtures", "__pycache__"})
        number = len(folders) + sum(not name.endswith(".so") for name in files)
        if number > MAX_ENTRIES:
            yield Path(folder), number


def find_all() -> list[str]:
    """One line for each finding in the repository."""
    full = {
        str(folder.relative_to(REPOSITORY)): number
        for root in (*COMPONENTS, *(REPOSITORY / name for name in OTHER_FOLDERS))
        for folder, number in find_full_folders(root)
    }
    crowded = [f"{name} has {full[name]} entries" for name in full]
    return crowded + [
        f"{file.path.relative_to(REPOSITORY)}:{line} {rule.__name__}: {value}"
        for file in list_files()
        for rule in RULES
        for line, value in rule(file)
    ]


if __name__ == "__main__":
    findings = find_all()
    sys.stdout.write("".join(f"{finding}\n" for finding in findings))
    sys.exit(bool(findings))
