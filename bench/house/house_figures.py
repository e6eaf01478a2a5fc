"""Prints the figures of the source, for one checkout or for two beside each other.

``python bench/house/house_figures.py [--cases] CHECKOUT [CHECKOUT]``: sizes, comments, imports,
names, prose and copies; with ``--cases`` the collected tests too, which takes a minute for each
checkout.
"""

import argparse
import ast
import io
import os
import re
import statistics
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

_EMPTY = re.compile(
    r"_*(told|said|one|made|there|who|beside|asked|shown|kept|came|went|alone|together|whole|middle"
    r"|place|wanted|known|hear|tell|beat|look|mark|cut)_*"
)
_WITHOUT_A_VERB = re.compile(
    r"_?(of|by|in|after|before|at|on|for|over|under|beside|around|among|within|without)_[a-z]"
)
_PROPERTIES = {"property", "cached_property"}
_MANNERED = re.compile(
    r"\b(is no [a-z]|are no [a-z]+s\b|befell|befall|dearest|in vain|gets? on\b|comes? by itself"
    r"|stands for|cannot be had|was had|were had)",
    re.IGNORECASE,
)
_SMALL_LINES = 60
# A copy is a run of lines that another place has too; one in more places is an idiom.
_COPIED_LINES, _MOST_PLACES = 6, 8
_NOT_COPIED = re.compile(r"#|//|import |from \S+ import |[\W_]*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """A file of Python: its dotted name, source and syntax tree."""

    name: str
    source: str
    tree: ast.Module

    @property
    def num_lines(self) -> int:
        """Lines of the file."""
        return len(self.source.splitlines())


def main() -> None:
    """Prints a Markdown table with a column for each checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--cases", action="store_true", help="collect the tests too")
    chosen = parser.parse_args()
    columns = [dict(figures(each, cases=chosen.cases)) for each in chosen.checkouts]
    print("| figure |" + " |".join(f" {each} " for each in chosen.checkouts) + "|")
    print("| --- |" + " --- |" * len(columns))
    for name in dict.fromkeys(name for column in columns for name in column):
        print(f"| {name} |" + " |".join(f" {column.get(name, '')} " for column in columns) + "|")


def figures(checkout: Path, *, cases: bool = False) -> Iterator[tuple[str, str]]:
    """Name and text of each figure."""
    files = _list_tracked(checkout)
    components = sorted({path.parts[0] for path in files if path.match("*/lockstep*/__init__.py")})
    modules = [module for component in components for module in _read(checkout / component)]
    yield from _figures_of_modules(modules)
    for folder in (*components, "tests", "bench"):
        yield f"lines of {folder}, C too", f"{sum(_count_lines(checkout, files, folder)):,}"
    folders = {*components, "tests", "bench"}
    code = [path for path in files if path.parts[0] in folders and _is_code(path)]
    parts = {part for path in code for part in (path, *path.parents)} - {Path()}
    [(fullest, number)] = Counter(part.parent for part in parts).most_common(1)
    yield "most entries in one folder", f"{number} ({fullest})"
    copies = _count_copies(checkout, code)
    yield f"copies: pairs of places with {_COPIED_LINES} or more equal lines", str(copies)
    if cases:
        yield "cases of the suite", _count_cases(checkout, components)


def _figures_of_modules(modules: list[Module]) -> Iterator[tuple[str, str]]:
    names = {module.name for module in modules}
    sizes = sorted(module.num_lines for module in modules)
    functions = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    total = sum(sizes)
    comments = sum(map(_num_comments, modules))
    yield "files", str(len(modules))
    yield "lines of Python", f"{total:,}"
    yield "median file, lines", f"{statistics.median(sizes):.0f}"
    yield "longest file, lines", str(sizes[-1])
    yield "median function, lines", f"{statistics.median(functions):.0f}"
    yield "longest function, lines", str(functions[-1])
    yield "comment lines, share", f"{comments / total:.1%}"
    imports = {module.name: _imports(module, names) for module in modules}
    packages = _group_by_package(imports)
    yield "files in import circles", str(sum(map(len, _circles(imports))))
    yield "packages in import circles", str(sum(map(len, _circles(packages))))
    importers = [sum(module.name in found for found in imports.values()) for module in modules]
    small = [
        count
        for module, count in zip(modules, importers, strict=True)
        if module.num_lines < _SMALL_LINES and not module.source.count("\n") < 3  # noqa: PLR2004  # empty __init__
    ]
    yield f"files under {_SMALL_LINES} lines with one importer", str(small.count(1))
    yield "files with one importer", str(importers.count(1))
    yield "functions with a name that says nothing", str(sum(map(_num_empty, modules)))
    yield "functions without a verb", str(sum(map(_count_without_a_verb, modules)))
    mannered = (len(_MANNERED.findall(module.source)) for module in modules)
    yield "mannered phrases", str(sum(mannered))


def _read(room: Path) -> Iterator[Module]:
    for path in sorted(room.rglob("*.py")):
        name = ".".join(path.relative_to(room).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text(encoding="utf-8")
        yield Module(name=name, source=source, tree=ast.parse(source))


def _num_comments(module: Module) -> int:
    """Lines that are nothing but a comment; what silences a linter is not counted."""
    tokens = tokenize.generate_tokens(io.StringIO(module.source).readline)
    return sum(
        token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens
    )


def _imports(module: Module, names: set[str]) -> set[str]:
    found = set[str]()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & names) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & names) - {module.name}


def _group_by_package(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Imports between folders; a file directly in a component is its own group."""

    def package(name: str) -> str:
        parts = name.split(".")
        return ".".join(parts[:2]) if len(parts) > 1 else name

    folders: dict[str, set[str]] = {}
    for name, found in imports.items():
        own = package(name)
        folders.setdefault(own, set()).update(map(package, found))
        folders[own].discard(own)
    return folders


def _circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected sets of more than one name: each reaches each other."""

    def reached(start: str) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            for name in imports.get(waiting.pop(), set()) - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    reach = {name: reached(name) for name in imports}
    circles = {
        frozenset(other for other in reach[name] if name in reach.get(other, set()))
        for name in imports
    }
    return [set(circle) for circle in circles if len(circle) > 1]


def _list_tracked(checkout: Path) -> list[Path]:
    done = subprocess.run(
        ["git", "-C", checkout, "ls-files"], check=True, capture_output=True, text=True
    )
    return [path for path in map(Path, done.stdout.splitlines()) if (checkout / path).is_file()]


def _is_code(path: Path) -> bool:
    return path.suffix in {".py", ".c", ".h"}


def _count_lines(checkout: Path, files: list[Path], folder: str) -> Iterator[int]:
    for path in files:
        if path.parts[0] == folder and _is_code(path):
            yield len((checkout / path).read_text(encoding="utf-8").splitlines())


def _count_copies(checkout: Path, files: Iterable[Path]) -> int:
    """Pairs of runs; blank lines, comments, imports and lone punctuation are passed over."""
    places: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, path in enumerate(files):
        text = (checkout / path).read_text(encoding="utf-8")
        lines = [line for each in text.splitlines() if not _NOT_COPIED.match(line := each.strip())]
        for at in range(len(lines) - _COPIED_LINES + 1):
            places[tuple(lines[at : at + _COPIED_LINES])].append((number, at))
    pairs = {
        (first, second)
        for found in places.values()
        if len(found) <= _MOST_PLACES
        for first, second in combinations(found, 2)
    }
    # A run that goes on from the line before is counted there.
    return sum(
        ((file, at - 1), (other, other_at - 1)) not in pairs
        for (file, at), (other, other_at) in pairs
    )


def _count_cases(checkout: Path, components: list[str]) -> str:
    path = os.pathsep.join(str(checkout.resolve() / each) for each in components)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"(\d+) tests collected", done.stdout)
    return f"{int(found[1]):,}" if found else "not collected"


def _count_without_a_verb(module: Module) -> int:
    return sum(
        _WITHOUT_A_VERB.match(node.name) is not None
        and not any(
            isinstance(each, ast.Name) and each.id in _PROPERTIES for each in node.decorator_list
        )
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _num_empty(module: Module) -> int:
    """Functions of which a parameter or local is named by a word that says nothing."""
    return sum(
        any(_EMPTY.fullmatch(name) for name in _bound(node))
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _bound(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


if __name__ == "__main__":
    main()
