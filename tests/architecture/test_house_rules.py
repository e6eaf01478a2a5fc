"""The house rules hold, and each of them finds what it forbids."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rules() -> Iterator[ModuleType]:
    path = REPOSITORY / "tests" / "architecture" / "house_rules.py"
    spec = importlib.util.spec_from_file_location("house_rules", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by its name
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def findings(rules: ModuleType, rule: str, source: str, name: str = "sample.py") -> list[str]:
    file = rules.SourceFile(Path("agent", name), source)
    return [value for _, value in getattr(rules, rule)(file)]


def test_the_house_rules_hold_in_every_file(rules: ModuleType) -> None:
    assert len(rules.list_files()) > 1000
    assert rules.find_all() == []


def test_a_folder_of_25_entries_is_found_and_compiled_files_do_not_count(
    rules: ModuleType, tmp_path: Path
) -> None:
    for number in range(24):
        (tmp_path / f"module_{number}.py").touch()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "_native.so").touch()
    assert list(rules.find_full_folders(tmp_path)) == []
    (tmp_path / "folder").mkdir()
    assert list(rules.find_full_folders(tmp_path)) == [(tmp_path, 25)]


def test_a_metric_name_in_quotes_is_found_and_one_in_a_docstring_is_not(rules: ModuleType) -> None:
    for quote in ('x = "{}"', 'x = f"rate({}[{{w}}])"', 'f({{"a": "sum({})"}})'):
        for name in sorted(rules.NAMES):
            assert findings(rules, "find_quoted_metrics", quote.format(name)), quote
            assert findings(rules, "find_quoted_metrics", f'"""Counts {name}."""') == []


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
def test_a_name_that_says_nothing_is_found_wherever_it_is_given(
    rules: ModuleType, source: str
) -> None:
    assert len(findings(rules, "find_empty_names", source)) == 1
    assert findings(rules, "find_empty_names", "def test_one_told(page): row = page.one") == []


def test_each_other_rule_finds_what_it_forbids(rules: ModuleType) -> None:
    long_function = "def f():\n" + "    x = 1\n" * 41
    assert findings(rules, "find_long_functions", long_function) == ["f has 41 lines"]
    assert findings(rules, "find_long_files", "x = 1\n" * 500) == ["500 lines"]
    assert findings(rules, "find_long_files", "", name="utils.py") == ["utils"]
    assert findings(rules, "find_unopened_modules", '"""no."""') == ["no opening sentence"]
    assert findings(rules, "find_unopened_modules", '"""Yes."""') == []
    assert findings(rules, "find_unexplained_silencers", "x = 1  # no" + "qa: E501")
    assert findings(rules, "find_catch_alls", "try: ...\nexcept (A, Exception): ...")
    assert findings(rules, "find_catch_alls", "try: ...\nexcept ValueError: ...") == []


@pytest.mark.parametrize("name", ["_by_work", "of_kind", "without_nan", "at_once"])
def test_a_function_named_by_a_preposition_is_found(rules: ModuleType, name: str) -> None:
    method = f"class A:\n    def {name}(self): ..."
    assert findings(rules, "find_names_without_a_verb", method) == [name]
    as_property = f"class A:\n    @property\n    def {name}(self): ..."
    assert findings(rules, "find_names_without_a_verb", as_property) == []


@pytest.mark.parametrize("name", ["from_dict", "to_json", "with_labels", "on_header", "format_of"])
def test_an_idiom_of_the_field_is_no_finding(rules: ModuleType, name: str) -> None:
    assert findings(rules, "find_names_without_a_verb", f"def {name}(): ...") == []


@pytest.mark.parametrize(
    ("source", "phrase"),
    [
        ('"""What befell it."""', "befell"),
        ("x = 1  # this is no file", "is no f"),
        ("raise ValueError('--listen cannot be had')", "cannot be had"),
        ("# these are no files", "are no files"),
    ],
)
def test_mannered_prose_is_found_in_docstrings_comments_and_strings(
    rules: ModuleType, source: str, phrase: str
) -> None:
    assert findings(rules, "find_mannered_prose", source) == [phrase]
    in_tests = rules.SourceFile(Path("tests", "sample.py"), source, is_library=False)
    assert list(rules.find_mannered_prose(in_tests)) == []
    assert findings(rules, "find_mannered_prose", "# this is not a file") == []


def test_a_file_of_declarations_in_the_catalogue_may_be_long(rules: ModuleType) -> None:
    declarations = "x = 1\n" * 500
    for source, found in ((declarations, []), (declarations + "if x: ...", ["501 lines"])):
        file = rules.SourceFile(Path("catalogue", "lockstep_catalogue", "sample.py"), source)
        assert [value for _, value in rules.find_long_files(file)] == found


def test_components_look_down_and_never_sideways() -> None:
    command = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [command], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stdout


NEEDS_NOTHING = """
import sys
before = set(sys.modules)
import {module}
# multiprocessing calls the main module so too.
rooms = "", "_catalogue", "_outcomes", "_records"
components = ("__mp_main__", *(f"lockstep{{room}}" for room in rooms))
tops = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(tops - sys.stdlib_module_names - set(components)))
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
