"""Prints the figures of the house, for one checkout or for two beside each other.

``python bench/house_figures.py CHECKOUT [CHECKOUT]``: sizes, comments, import circles and names.
"""

import ast
import io
import re
import statistics
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOMS = (
    "catalogue records cli instrumentation trainer agent ledger alerts dashboards reports".split()  # noqa: SIM905  # reads as the tree does
)
_EMPTY = re.compile(
    r"_*(told|said|one|made|there|who|beside|asked|shown|kept|came|went|alone|together|whole|middle"
    r"|place|wanted|known|hear|tell|beat|look|mark|cut)_*"
)
_SMALL_LINES = 60


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
    columns = [dict(figures(Path(checkout))) for checkout in sys.argv[1:]]
    print("| figure |" + " |".join(f" {checkout} " for checkout in sys.argv[1:]) + "|")
    print("| --- |" + " --- |" * len(columns))
    for name in columns[0]:
        print(f"| {name} |" + " |".join(f" {column[name]} " for column in columns) + "|")


def figures(checkout: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each figure."""
    modules = [module for room in _ROOMS for module in _read(checkout / room)]
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
    yield "lines", f"{total:,}"
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
    yield "most files in one folder", str(_fullest_folder(checkout))
    yield "functions with a name that says nothing", str(sum(map(_num_empty, modules)))


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


def _fullest_folder(checkout: Path) -> int:
    folders = {path.parent for room in _ROOMS for path in (checkout / room).rglob("*.py")}
    return max(len(list(folder.glob("*.py"))) for folder in folders)


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
