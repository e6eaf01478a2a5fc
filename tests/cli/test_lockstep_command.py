"""The command lists every component's sentence, imports none, and refuses in one sentence."""

import ast
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from click import BadParameter
from hypothesis import given
from hypothesis import strategies as st
from servers import captured, serving

from lockstep_cli.options import FiniteRange, read_address
from lockstep_cli.small_server import Answer, Request, SmallServer

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
COMMANDS: dict[str, str] = PROJECT["project"]["entry-points"]["lockstep.commands"]
ROOMS = [
    Path(folder) for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]

HELP_AND_MODULES = """
import sys
from lockstep_cli.main import group
group.main(["--help"], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""


def lockstep(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lockstep"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def help_and_modules() -> tuple[str, set[str]]:
    """What `lockstep --help` prints, in one line, and every module that it loaded."""
    done = captured([sys.executable, "-c", HELP_AND_MODULES], check=True, timeout=30)
    return " ".join(done.stdout.split()), set(done.stderr.split())


def first_sentence(command: str) -> str:
    module = COMMANDS[command].partition(":")[0]
    room, _, inner = module.partition(".")
    folder = next(REPOSITORY / path for path in ROOMS if path.name == room)
    text = folder.joinpath(*inner.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def test_help_lists_every_command_with_its_sentence_and_loads_no_component() -> None:
    help_text, modules = help_and_modules()
    for command in COMMANDS:
        assert f" {command} {first_sentence(command)}" in help_text
    rooms = {path.name for path in ROOMS} - {"lockstep_cli"}
    assert not {name.partition(".")[0] for name in modules} & {*rooms, "torch", "numpy"}


@pytest.mark.parametrize("arguments", [("nosuch",), ("--nosuch",), ("demo", "--out", __file__)])
def test_bad_input_ends_in_one_sentence_and_exit_status_two(arguments: tuple[str, ...]) -> None:
    done = lockstep(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lockstep: ")
    assert done.stderr.count("\n") == 1


def test_the_version_is_that_of_the_distribution() -> None:
    done = lockstep("--version")
    assert done.returncode == 0
    assert done.stdout == f"lockstep, version {PROJECT['project']['version']}\n"


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "1e999"])
def test_what_is_no_number_to_count_with_is_refused_whatever_the_bounds(text: str) -> None:
    for bounds in (FiniteRange(), FiniteRange(0), FiniteRange(max=1)):
        with pytest.raises(BadParameter):
            bounds.convert(text, None, None)


def test_a_number_within_the_bounds_is_taken_and_one_outside_is_not() -> None:
    bounds = FiniteRange(0.5, 2)
    assert [bounds.convert(text, None, None) for text in ("0.5", "2", "1.25")] == [0.5, 2.0, 1.25]
    for text in ("0.49", "2.01", "much"):
        with pytest.raises(BadParameter):
            bounds.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9440", "127.0.0.1", 9440),
        ("localhost:0", "localhost", 0),
        ("[::1]:65535", "::1", 65535),
        ("node-7.cluster:29500", "node-7.cluster", 29500),
    ],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    assert read_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":80",
        "host:",
        "host:x",
        "host:-1",
        "host:65536",
        "host:\u0661",
        "a b:80",
        "http://h:80",
    ],
)
def test_what_is_no_address_is_refused_by_its_own_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT") as refused:
        read_address(text)
    assert repr(text) in str(refused.value)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        host, port = read_address(text)
    except ValueError:
        return
    assert host
    assert 0 <= port <= 65535


class Echo(SmallServer):
    def respond(self, request: Request) -> Answer:
        return Answer(HTTPStatus.OK, request.body or request.path.encode())


@pytest.fixture(name="url")
def _url() -> Iterator[str]:
    with serving(Echo("127.0.0.1", 0, names=("node-7",), max_body_bytes=100)) as server:
        yield f"http://{server.address}/x"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:9441", "[::1]:9441", "localhost", "LOCALHOST:9441", socket.gethostname(), "Node-7"],
)
def test_an_address_and_a_name_of_the_machine_are_served(url: str, host: str) -> None:
    assert httpx.get(url, headers={"Host": host}).text == "/x"


@pytest.mark.parametrize(
    "hosts",
    [
        *("evil.example", "127.0.0.1.evil.example", "localhost-evil", "localhost.evil.example"),
        *("node-7.evil.example", "[evil]:80", "localhost@evil.example", "evil.example:1@localhost"),
        *("127.1", "0", "0x7f000001", "2130706433", "[::1%25eth0]", "localhost\t", "x" * 10_000),
        *("", "localhost\r\nHost: localhost"),
    ],
)  # fmt: skip
def test_a_host_that_is_not_this_machine_is_refused(url: str, hosts: str) -> None:
    address, port = url.split("/")[2].rsplit(":", 1)
    with socket.create_connection((address, int(port)), timeout=20) as connection:
        connection.sendall(f"GET /x HTTP/1.1\r\nHost: {hosts}\r\n\r\n".encode())
        assert b" 403 " in connection.recv(100)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_the_page_of_another_site_may_not_post(url: str, origin: str) -> None:
    assert httpx.post(url, content=b"a", headers={"Origin": origin}).status_code == 403
    own = url.removesuffix("/x")
    assert httpx.post(url, content=b"a", headers={"Origin": own}).text == "a"


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("100", 200),
        ("101", 413),
        ("9" * 5000, 413),
        ("-1", 411),
        ("1e1", 411),
        ("", 411),
        ("5\r\nContent-Length: 6", 411),
        ("5\r\nTransfer-Encoding: chunked", 411),
    ],
)
def test_a_body_beyond_the_limit_is_not_read(url: str, length: str, status: int) -> None:
    host, port = url.split("/")[2].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"POST /x HTTP/1.0\r\nContent-Length: {length}\r\n\r\n".encode()
        connection.sendall(head + b"a" * 100 * (status == 200))
        assert f" {status} ".encode() in connection.recv(100)


def test_a_socket_in_a_folder_is_its_users_alone_and_replaces_a_stale_one(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.touch()
    transport = httpx.HTTPTransport(uds=str(path))
    with serving(Echo(str(path), 0)), httpx.Client(transport=transport) as client:
        assert path.stat().st_mode & 0o777 == 0o600
        assert client.get("http://localhost/x").text == "/x"
        assert client.get("http://evil.example/x").status_code == 403
