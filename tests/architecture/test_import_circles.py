"""No file and no package of the repository imports itself by way of others.

Every import counts: inside functions and under ``TYPE_CHECKING`` too, for a circle that only a type
checker follows is still one that a reader has to follow.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
Graph = Mapping[str, set[str]]


def package_folders() -> list[Path]:
    """The one Python package of each component, such as ``agent/lockstep_agent``."""
    return sorted(path.parent for path in ROOT.glob("*/lockstep*/__init__.py"))


def module_files(package: Path) -> dict[str, Path]:
    """Files by dotted name; a package's ``__init__`` has the name of the package."""
    modules = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def imported_modules(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Which of the modules a file imports: of ``from a import b`` it is ``a.b`` if that is one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in modules else node.module


def file_graph(package: Path) -> dict[str, set[str]]:
    """Which file imports which others of its package."""
    modules = module_files(package)
    return {
        name: {other for other in imported_modules(path, modules) if other in modules} - {name}
        for name, path in modules.items()
    }


def sibling_graph(files: Graph) -> dict[str, set[str]]:
    """The same between what stands directly below the package: its sub-packages and its files."""
    graph: dict[str, set[str]] = {}
    for name, imports in files.items():
        sibling = _sibling(name)
        graph.setdefault(sibling, set()).update(
            other for file in imports if (other := _sibling(file)) != sibling
        )
    return graph


def _sibling(module: str) -> str:
    return ".".join(module.split(".")[:2])


def find_circle(graph: Graph) -> list[str]:
    """Names along one circle, its first again at the end; nothing where there is none."""
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return []
        for imported in sorted(graph.get(name, ())):
            if circle := visit(imported, [*path, name]):
                return circle
        finished.add(name)
        return []

    return next((circle for name in sorted(graph) if (circle := visit(name, []))), [])


def test_every_component_has_its_package() -> None:
    assert len(package_folders()) == 12


def test_no_file_and_no_sub_package_imports_itself_by_way_of_others() -> None:
    graphs = [file_graph(package) for package in package_folders()]
    assert [circle for graph in graphs if (circle := find_circle(graph))] == []
    siblings = map(sibling_graph, graphs)
    assert [circle for graph in siblings if (circle := find_circle(graph))] == []
