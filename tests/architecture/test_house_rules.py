"""The rules of the house that a machine can check, over every file of every room."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lockstep_catalogue import METRICS, RECORDED

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = [
    REPOSITORY / folder
    for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]
MODULES = sorted(path for room in ROOMS for path in room.rglob("*.py"))
BESIDE = sorted(path for name in ("bench", "tests") for path in (REPOSITORY / name).rglob("*.py"))
OUTSIDE_CATALOGUE = [
    path for path in (*MODULES, *BESIDE) if not {"lockstep_catalogue", "tests"} & set(path.parts)
]
NAMES = {series.name for series in METRICS} | {series.name for series in RECORDED}
LIKE_A_NAME = re.compile(r"\blockstep_(train|gpu|nvlink|pcie|fabric|host|agent|ledger)_\w")
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
SILENCER = re.compile(r"# (?:noqa|type: ignore)\S*(?P<codes>[^#\n]*)(?P<reason># \S.*)?$")
# They say nothing of a value: a name says what it is, never that somebody told or made it.
EMPTY_NAMES = frozenset((
    "told", "said", "one", "made", "there", "who", "beside", "asked", "shown", "kept", "came",
    "went", "alone", "together", "whole", "middle", "place", "wanted", "known", "hear", "tell",
    "beat", "look", "mark", "cut",
))  # fmt: skip
EMPTY_PARTS = frozenset({"told", "said", "tell", "untold"})  # of longer names too
MAX_LINES = 300
MAX_FUNCTION_LINES = 40
THE_LOOP = "_train"  # read from top to bottom, it may be as long as a training step is


def by_path(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@cache
def parsed(path: Path) -> ast.Module:
    """Each file is parsed once, for most rules walk over every one."""
    return ast.parse(path.read_text(encoding="utf-8"))


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Every string of a module but docstrings; the parts of f-strings too."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings:
            assert isinstance(node, ast.Constant)
            yield node


def quoted_names(tree: ast.Module) -> list[str]:
    """What a module quotes of the catalogue's names, or of what looks like one."""
    texts = [str(node.value) for node in strings(tree)]
    return [
        text for text in texts if LIKE_A_NAME.search(text) or any(name in text for name in NAMES)
    ]


@pytest.mark.parametrize("path", OUTSIDE_CATALOGUE, ids=by_path)
def test_no_metric_name_stands_in_quotes_outside_the_catalogue(path: Path) -> None:
    assert quoted_names(parsed(path)) == []


@pytest.mark.parametrize("quote", ['x = "{}"', 'x = f"rate({}[{{w}}])"', 'f({{"a": "sum({})"}})'])
def test_a_name_in_quotes_is_found_and_one_in_a_docstring_is_not(quote: str) -> None:
    for name in sorted(NAMES):
        assert quoted_names(ast.parse(quote.format(name)))
        assert quoted_names(ast.parse(f'"""Tells of {name}."""')) == []


@pytest.mark.parametrize("path", [*MODULES, *BESIDE], ids=by_path)
def test_a_file_tells_one_story_in_under_300_lines(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < MAX_LINES
    assert not any("TO" + "DO" in line for line in lines)
    assert path.stem not in EMPTY_WORDS


def names_bound(tree: ast.Module) -> Iterator[str]:
    """Every name that a module gives to something: parameters, variables, attributes, functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def empty_names(tree: ast.Module) -> set[str]:
    """Names of a module that say nothing; sentences, as names of tests are, do not count."""
    return {
        name
        for name in names_bound(tree)
        if not name.startswith("test_")
        and (name.strip("_") in EMPTY_NAMES or EMPTY_PARTS & set(name.lower().split("_")))
    }


@pytest.mark.parametrize("path", [*MODULES, *BESIDE], ids=by_path)
def test_every_name_says_what_its_value_is(path: Path) -> None:
    assert empty_names(parsed(path)) == set()


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "def f(one): ...",
        "class A:\n    def _tell_page(self): ...",
        "f = lambda told: 0",
        "a.kept = 2",
        "[there for there in x]",
        "import x as place",
        "try: ...\nexcept E as said: ...",
        "with f() as beside: ...",
        "if (known := 1): ...",
    ],
)
def test_a_name_that_says_nothing_is_found_wherever_it_is_given(source: str) -> None:
    assert len(empty_names(ast.parse(source))) == 1
    assert empty_names(ast.parse("def test_one_told(page): row = page.one")) == set()


@pytest.mark.parametrize("path", MODULES, ids=by_path)
def test_a_module_opens_with_one_sentence_that_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(parsed(path)) or ""
    assert re.match(r"[A-Z`][^\n]+[.:!?]", docstring)


@pytest.mark.parametrize("path", [*MODULES, *BESIDE], ids=by_path)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            short = (node.end_lineno or 0) - node.lineno < MAX_FUNCTION_LINES
            assert short or node.name == THE_LOOP, node.name


@pytest.mark.parametrize("path", [*MODULES, *BESIDE], ids=by_path)
def test_who_silences_a_check_says_why_on_the_same_line(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        silenced = SILENCER.search(line)
        assert silenced is None or silenced["reason"], line


def catches_all(handler: ast.ExceptHandler) -> bool:
    names = ast.walk(handler.type) if handler.type else []
    broad = {"Exception", "BaseException"}
    return handler.type is None or any(isinstance(n, ast.Name) and n.id in broad for n in names)


def test_all_errors_are_caught_around_a_collector_and_around_the_pen_and_nowhere_else() -> None:
    found = {
        path.name
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ExceptHandler) and catches_all(node)
    }
    # Around a call of the device inside a step as well, which would pay for a guard at each event,
    # and around a batch of the ledger: one event of a stranger must not hold up all others.
    assert found == {
        "collector.py", "device_timeline.py", "guard.py", "isolation.py", "recorder.py",
    }  # fmt: skip


def test_rooms_look_down_and_never_sideways() -> None:
    command = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [command], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stdout


NEEDS_NOTHING = """
import sys
before = set(sys.modules)
import {module}
rooms = ("lockstep", "lockstep_catalogue", "lockstep_records")
tops = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(tops - sys.stdlib_module_names - set(rooms)))
"""


@pytest.mark.parametrize(
    "module", ["lockstep_catalogue", "lockstep_records.page.writer", "lockstep"]
)
def test_what_runs_in_the_loop_needs_nothing_beyond_the_standard_library(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEEDS_NOTHING.format(module=module)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.split() == []
