"""What agent, pager and boards refuse alike: other hosts, other origins, bodies that are long."""

import socket
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from http_servers import serving

from lockstep_cli.small_server import Answer, Request, SmallServer


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
