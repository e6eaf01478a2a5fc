"""Web access: TLS, passwords and tokens, and slow clients that cannot hold up the server."""

import base64
import gzip
import socket
import ssl
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import bcrypt
import httpx
import pytest
from servers import serving

from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.web.access_control import AccessControl, Admission, read_tokens, read_web_config
from lockstep_agent.web.server import MetricsServer
from lockstep_cli.small_server import ConnectionLimiter

from ..in_process import refused_message

TOKEN = "thirty-two characters".replace(" ", "-")
HASHED = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
DEAR_HASH = "$2b$13$" + "a" * 53  # the same in each process: it is in the name of a test


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for the loopback, signed by itself, and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += [
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run(
        [*command, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=30
    )
    return cert, key


@pytest.fixture(name="keys", scope="session")
def _keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("first", "second"):
        certificate(folder, name)
    return folder


def agent(access_control: AccessControl | None = None) -> AbstractContextManager[MetricsServer]:
    sampler = Sampler(tuple, tick_seconds=60)
    sampler.sample()
    return serving(
        MetricsServer("127.0.0.1", 0, sampler, node="node-7", access_control=access_control)
    )


def trusting(cert: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(cert))


def web_file(folder: Path, text: str) -> Path:
    path = folder / "web.yml"
    path.write_text(text)
    return path


TLS = "tls_server_config: {{cert_file: {0}/{1}.crt, key_file: {0}/{1}.key}}\n"


def test_passwords_and_tokens_open_every_page_and_nothing_else_does(tmp_path: Path) -> None:
    web = web_file(
        tmp_path,
        f"basic_auth_users: {{alice: '{HASHED}'}}\n"
        "http_server_config: {headers: {X-Frame-Options: deny}}\n",
    )
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# scrapers\n{TOKEN}\n")
    with agent(AccessControl(web, tokens)) as server:
        refused = httpx.get(server.url)
        assert refused.status_code == httpx.codes.UNAUTHORIZED
        assert refused.headers["www-authenticate"] == 'Basic realm="lockstep"'
        for password, status in (("secret", 200), ("wrong", 401), ("", 401)):
            answer = httpx.get(server.url, auth=("alice", password))
            assert answer.status_code == status
            assert answer.headers["x-frame-options"] == "deny"
        assert httpx.get(server.url, auth=("bob", "secret")).status_code == 401
        for authorization, status in (
            (f"Bearer {TOKEN}", 200),
            ("Bearer wrong", 401),
            ("Basic !", 401),
        ):
            answer = httpx.get(server.url, headers={"Authorization": authorization})
            assert answer.status_code == status
        root = server.url.removesuffix("/metrics")
        assert httpx.get(f"{root}/health").status_code == 401
        assert httpx.get(f"{root}/ready").text == "ok\n"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_wrong_passwords_cost_their_address_its_tries_and_hold_up_nobody_who_knows_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[bytes] = []

    def checkpw(password: bytes, hashed: bytes) -> bool:
        computed.append(password)
        return bcrypt.hashpw(password, hashed) == hashed

    monkeypatch.setattr("lockstep_agent.web.access_control.bcrypt.checkpw", checkpw)
    admission = Admission({"alice": HASHED})
    right = basic("alice", "secret")
    assert [admission.judge(right, "10.0.0.1") for _ in range(3)] == [200] * 3
    for number in range(1000):
        status = admission.judge(basic(("alice", "bob")[number % 2], f"{number}"), "10.0.0.9")
        assert status == (401 if number < 5 else 429)
    assert len(computed) == 6
    assert admission.judge(right, "10.0.0.9") == 200
    assert admission.judge(basic("alice", "wrong"), "10.0.0.8") == 401
    assert len(admission._remembered) == 1


def test_a_compressed_scrape_has_the_same_content() -> None:
    with agent() as server:
        plain = httpx.get(server.url, headers={"Accept-Encoding": "identity"})
        with httpx.stream("GET", server.url, headers={"Accept-Encoding": "gzip"}) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            compressed = b"".join(answer.iter_raw())
        assert gzip.decompress(compressed) == plain.content
        assert "content-encoding" not in plain.headers
        refused = httpx.get(server.url, headers={"Accept-Encoding": "gzip;q=0"})
        assert refused.content == plain.content
        assert "content-encoding" not in refused.headers
        assert httpx.head(server.url).content == b""


def test_tls_is_served_and_a_new_certificate_counts_from_the_next_connection(
    tmp_path: Path, keys: Path
) -> None:
    now = [0.0]
    web = web_file(tmp_path, TLS.format(keys, "first"))
    with agent(AccessControl(web, clock=lambda: now[0])) as server:
        assert server.url.startswith("https://")
        assert httpx.get(server.url, verify=trusting(keys / "first.crt")).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url, verify=trusting(keys / "second.crt"))
        web.write_text(TLS.format(keys, "second") + "# longer\n")
        now[0] += 2
        assert httpx.get(server.url, verify=trusting(keys / "second.crt")).status_code == 200
        web.write_text("nonsense: 1\n")
        now[0] += 2
        assert httpx.get(server.url, verify=trusting(keys / "second.crt")).status_code == 200


def test_a_client_needs_a_certificate_where_it_is_required(tmp_path: Path, keys: Path) -> None:
    web = web_file(
        tmp_path,
        TLS.format(keys, "first").replace(
            "}",
            f", client_auth_type: RequireAndVerifyClientCert, client_ca_file: {keys}/second.crt}}",
        ),
    )
    with agent(AccessControl(web)) as server:
        context = trusting(keys / "first.crt")
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url, verify=context)
        context.load_cert_chain(keys / "second.crt", keys / "second.key")
        assert httpx.get(server.url, verify=context).status_code == 200


def test_slow_clients_cannot_keep_a_scraper_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep_cli.small_server.MAX_CONNECTIONS", 8)
    with agent() as server:
        port = httpx.URL(server.url).port
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        try:
            for client in slow:
                client.sendall(b"GET /metrics HT")
            for _ in range(5):
                assert httpx.get(server.url, timeout=5).status_code == 200
            assert len(server.connections) <= 8
            slow[0].settimeout(30)
            assert slow[0].recv(1) == b""
        finally:
            for client in slow:
                client.close()


def test_a_connection_is_closed_at_its_time_out_however_busy_it_is() -> None:
    now = [0.0]
    connections = ConnectionLimiter(10, 15.0, clock=lambda: now[0])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connections.add(ours)
        now[0] = 14.9
        connections.close_overdue()
        assert len(connections) == 1
        now[0] = 15.0
        connections.close_overdue()
        assert len(connections) == 0
        assert theirs.recv(1) == b""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "Expected `object`, got `array`"),
        ("tls_sever_config: {}", "unknown field `tls_sever_config`"),
        ("rate_limit: {burst: 1}", "`rate_limit`; leave it out"),
        ("tls_server_config: {cert_file: x}", "missing required field `key_file`"),
        ("tls_server_config: {}", "missing required field `cert_file`"),
        ("tls_server_config: {cert: x}", "give cert_file"),
        ("tls_server_config: {cert_file: 1, key_file: x}", "1 is not the name of a file"),
        (
            "tls_server_config: {cert_file: x, key_file: y, min_version: TLS10}",
            "Invalid enum value 'TLS10'",
        ),
        (
            "tls_server_config: {cert_file: x, key_file: y, min_version: TLS13, max_version: 1}",
            "max_version",
        ),
        (
            "tls_server_config: {cert_file: x, key_file: y, client_ca_file: z}",
            "do not fit together",
        ),
        ("basic_auth_users: {alice: " + DEAR_HASH + "}", "at most 12"),
        ("basic_auth_users: {alice: secret}", "htpasswd -nBC 10"),
        ("basic_auth_users: {'a:b': secret}", "names without a colon"),
        ("http_server_config: {http2: 1}", "http2"),
        ("http_server_config: {headers: {X-Other: a}}", "unknown field `X-Other`"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nb"}}', "X-Frame-Options"),
    ],
)
def test_a_wrong_web_configuration_names_its_key(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ValueError, match=r"web\.yml") as raised:
        read_web_config(web_file(tmp_path, text))
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_sample_file_of_the_format_is_understood(tmp_path: Path) -> None:
    config = read_web_config(
        web_file(
            tmp_path,
            "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
            f"basic_auth_users:\n  alice: {HASHED.replace('$2b', '$2y')}\n",
        )
    )
    assert config.tls_server_config is not None
    assert config.tls_server_config.cert_file == tmp_path / "server.crt"
    assert Admission(config.basic_auth_users or {}).judge(basic("alice", "secret")) == 200


@pytest.mark.parametrize("text", ["", "short\n", "# only\n", "\xff" * 20])
def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ValueError, match="tokens"):
        read_tokens(path)


def test_a_certificate_that_does_not_match_its_key_is_one_sentence_and_exit_status_2(
    root: Path,
    tmp_path: Path,
    keys: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = TLS.format(keys, "first").replace("first.key", "second.key")
    words = ["--listen", "127.0.0.1:0", "--dir", str(root)]
    words += ["--web-config", str(web_file(tmp_path, text))]
    message = refused_message(monkeypatch, capsys, "agent", *words)
    assert "does not match key_file" in message


def test_tls_is_not_switched_on_or_off_while_the_server_runs(tmp_path: Path) -> None:
    now = [0.0]
    web, tokens = tmp_path / "web.yml", tmp_path / "tokens"
    web.write_text("")
    tokens.write_text(TOKEN)
    access_control = AccessControl(web, tokens, clock=lambda: now[0])
    cert, key = certificate(tmp_path, "late")
    web.write_text(f"tls_server_config: {{cert_file: {cert}, key_file: {key}}}")
    tokens.write_text(TOKEN + " other")
    now[0] += 1.1
    rules = access_control.rules()
    assert rules.context is None
    assert rules.admission.judge(f"Bearer {TOKEN}") == 200, "the old rules stay as a whole"


def test_access_control_polls_its_files_at_most_once_a_second(tmp_path: Path) -> None:
    now = [0.0]
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    access_control = AccessControl(tokens=tokens, clock=lambda: now[0])
    tokens.write_text(TOKEN[::-1] + "x")
    assert access_control.rules().admission.judge(f"Bearer {TOKEN}") == 200
    now[0] += 1.1
    assert access_control.rules().admission.judge(f"Bearer {TOKEN}") == 401
