"""The wheel holds every room, and its base needs click and nothing else."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from servers import captured

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = [
    REPOSITORY / folder
    for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


CAN_COMPILE = (
    shutil.which(shlex.split(sysconfig.get_config_var("CC"))[0]) is not None
    and Path(sysconfig.get_path("include"), "Python.h").exists()
)
COMPILED = f"lockstep/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
PLUGIN = "lockstep/libnccl-profiler-lockstep.so"


def run(*words: str | Path, **environment: str) -> str:
    done = captured(
        [sys.executable, *words], cwd=REPOSITORY, env={**os.environ, **environment}, check=True
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A path for modules with the wheel and click on it, and no site-packages."""
    installed = tmp_path_factory.mktemp("installed")
    run("-m", "pip", "install", "--no-deps", "--no-index", "--target", installed, wheel)
    click_folder = tmp_path_factory.mktemp("click")
    click = find_spec("click")
    assert click is not None
    assert click.origin is not None
    (click_folder / "click").symlink_to(Path(click.origin).parent)
    return [installed, click_folder]


def in_bare(bare: list[Path], program: str) -> subprocess.CompletedProcess[str]:
    path = f"import sys; sys.path[:0] = {[str(folder) for folder in bare]!r}\n"
    return captured([sys.executable, "-I", "-S", "-c", path + program], timeout=60)


def test_the_wheel_holds_every_module_and_layout_of_every_room(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for room in ROOMS:
        files = (*room.rglob("*.py"), *room.rglob("layouts/*.yaml"))
        held = {f"{room.name}/{path.relative_to(room)}" for path in files}
        assert held, f"room {room.name} is empty"
        assert held | {f"{room.name}/py.typed"} <= inside
    assert not any(name.startswith(("tests/", "docs/")) for name in inside)


@pytest.mark.skipif(not CAN_COMPILE, reason="no compiler or no Python.h here")
def test_the_wheel_is_for_this_machine_with_its_compiled_pen(wheel: Path) -> None:
    assert wheel.name.endswith(f"-{sysconfig.get_platform().replace('-', '_')}.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert sorted(name for name in inside if name.endswith(".so")) == [COMPILED, PLUGIN]


def test_without_a_compiler_the_wheel_is_for_every_machine(tmp_path: Path) -> None:
    output = run("-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, CC="/nowhere/cc")
    assert "lockstep._native is left out: " in output
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist())


def test_the_library_for_the_loop_works_where_torch_is_not(bare: list[Path]) -> None:
    done = in_bare(
        bare,
        "import importlib.util, lockstep\n"
        "assert importlib.util.find_spec('torch') is None\n"
        f"assert lockstep.__file__.startswith({str(bare[0])!r})\n"
        "print(*lockstep.__all__)",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "attach" in done.stdout.split()


def test_the_command_helps_and_refuses_where_only_click_is(bare: list[Path]) -> None:
    call = "from lockstep_cli.main import main\nsys.argv = ['lockstep', {}]\nmain()"
    ended = in_bare(bare, call.format("'--help'"))
    assert (ended.returncode, ended.stderr) == (0, "")
    for name in PROJECT["project"]["entry-points"]["lockstep.commands"]:
        assert f"  {name} " in ended.stdout
    page = in_bare(bare, call.format("'page', '/nowhere'"))
    assert page.returncode == 2
    assert page.stderr == "lockstep: page /nowhere cannot be opened: No such file or directory\n"


def refused(bare: list[Path], root: Path, words: tuple[str, ...]) -> str:
    """The one sentence a command ends with; it leaves nothing behind."""
    call = f"import os; os.environ['LOCKSTEP_DIR'] = {str(root)!r}\n"
    call += f"from lockstep_cli.main import main\nsys.argv = ['lockstep', *{words!r}]\nmain()"
    done = in_bare(bare, call)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert list(root.iterdir()) == []
    return done.stderr.removeprefix("lockstep: ").rstrip()


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (("alerts",), "rich", "alerts"),
        (("stack",), "rich", "alerts"),
        (("dashboards",), "rich", "dashboards"),
        (("report", "x"), "msgspec", "reports"),
        (("top", "--once"), "numpy", "reports"),
        (("agent", "--once"), "prometheus_client", "agent"),
        (("doctor",), "rich", "agent"),
        (("train",), "torch", "trainer"),
        (("shards",), "msgspec", "trainer"),
        (("jobs",), "rich", "reports"),
        (("demo",), "rich", "agent,alerts,dashboards,ledger,reports,trainer"),
    ],
)
def test_a_command_whose_extra_is_missing_says_which_to_install(
    bare: list[Path], tmp_path: Path, words: tuple[str, ...], package: str, extra: str
) -> None:
    assert refused(bare, tmp_path, words) == (
        f"command {words[0]!r} needs the package {package!r}, which is not installed; "
        f"run pip install '.[{extra}]' in the checkout"
    )


def test_a_job_is_not_begun_where_torch_is_not(bare: list[Path], tmp_path: Path) -> None:
    assert refused(bare, tmp_path, ("run", "-m", "this")) == (
        "the ranks are started by torch, which is not installed here; install torch or "
        "run pip install '.[trainer]' in the checkout"
    )
