"""Verbs of the attacks that are data: ``attacks.yaml`` says who does what, and what must follow."""

import contextlib
import http.server
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tenants import programs, users
from tenants.table import Attack, Ground, register

if TYPE_CHECKING:
    from tenants.arena import Arena

_OPERATOR_SECONDS = 60.0
_QUERIES = 'import json, sys; [print(json.loads(x)["params"]["query"]) for x in open(sys.argv[1])]'
_TOKENS = {"agent": programs.WRITER, "launcher": programs.LAUNCHER, "guest": "g" * 24}
_PATHS = {"agent": "/metrics", "ledger": "/api/jobs", "pager": "/pages", "boards": "/"}
_BY_NAME = frozenset({"http", "logs", "pages"})
"""Kinds that are surfaces too; other attacks have their kind in the name."""
_ALL = [*_PATHS]


def _names(scene: "Ground | Arena") -> dict[str, str]:
    """What attackers and operators write as ``$NAME``."""
    base = scene.root.parent
    names: dict[str, object] = {
        "BASE": base, "DIR": scene.root, "JOBS": scene.root / "jobs", "EVE": base / "attacker",
        "STATE": base / "agent" / "state", "REPO": users.REPOSITORY, "LAUNCHER": programs.LAUNCHER,
        "READER": programs.READER, "AGENT": scene.agent_port, "LEDGER": scene.ledger_port,
        "PAGER": scene.pager_port, "BOARDS": scene.boards_port,
        "PID0": scene.victim_pids[0], "PID1": scene.victim_pids[1],
    }  # fmt: skip
    return {name: str(value) for name, value in names.items()}


def _filled(value: Any, names: dict[str, Any]) -> Any:
    """A value with its ``$NAME`` replaced; ``{times: [TEXT, N]}`` is a text N times."""
    if isinstance(value, str):
        if value[:1] == "$" and value[1:] in names:
            return names[value[1:]]
        return re.sub(r"\$([A-Z]+[01]?)", lambda m: str(names.get(m[1], m[0])), value)
    if isinstance(value, dict) and [*value] == ["times"]:
        text, count = _filled(value["times"], names)
        return _text(text) * count
    if isinstance(value, dict):
        return {_filled(name, names): _filled(each, names) for name, each in value.items()}
    return [_filled(each, names) for each in value] if isinstance(value, list) else value


def _text(pieces: str | list[str]) -> str:
    return pieces if isinstance(pieces, str) else "".join(pieces)


def _bytes(pieces: str | list[str]) -> bytes:
    return _text(pieces).encode("latin-1")


@dataclass
class Hand:
    """An attacker who acts; each method is a verb, and ``got`` holds the answers."""

    ground: Ground
    got: list[str] = field(default_factory=list)

    def _port(self, name: str) -> int:
        return int(_names(self.ground)[name.upper()])

    def say(self, kind: str, job: str = "", by: str = "launcher", **members: Any) -> None:
        """Posts one event with a token."""
        frame = {"version": 1, "cluster": "east", "node": "node-7", **members.pop("frame", {})}
        name = f"{self.ground.name}-{len(self.got)}-{time.time_ns()}"
        event: dict[str, Any] = {"id": name, "kind": kind, "attempt": 0}
        event |= {
            "job_id": job or self.ground.name,
            "time": time.time() - 1,
            "fields": {},
            **members,
        }
        frame = {name: value for name, value in frame.items() if value is not None}
        event = {name: value for name, value in event.items() if value != "ABSENT"}
        event["time"] += event.pop("later", 0)
        self.post(json.dumps({**frame, "events": [event]}), token=_TOKENS[by])

    def post(self, body: str | list[str], token: str = "", **options: Any) -> None:
        """Posts a body to the ledger; ``headers`` in place of the type."""
        answer = self.ground.post(_bytes(body), token=token or None, **options).decode("latin-1")
        self.got.append(f"{answer[:20]} {answer[-600:]}")
        self.ground.held.pop().close()

    def dead_letters(self, line: list[str], times: int) -> None:
        """Posts a delivery of wrong events, ``%`` their number."""
        text = _text(line)
        self.ground.deliver(*(text.replace("%", str(number)) for number in range(times)))
        self.ground.held.pop().close()

    def ask(
        self, to: list[str] = _ALL, path: str = "", *, host: str = "127.0.0.1", head: str = "",
        body: str = "", text: str | list[str] = "", read: bool = True,
    ) -> None:  # fmt: skip
        """Sends a request, or any text, to servers."""
        length = f"Content-Length: {len(body)}\n" if body else ""
        for name in to:
            first = f"{'POST' if body else 'GET'} {path or _PATHS[name]} HTTP/1.1\nHost: {host}\n"
            data = _text(text) or f"{first}{head}{length}Connection: close\n\n{body}"
            sent = data.replace("\n", "\r\n").encode("latin-1", "replace")
            answer = self.ground.send(self._port(name), sent, read=read)
            self.got.append(answer.decode("utf-8", "replace")[:4000])

    def idle(self, to: str, first: str = "", count: int = 2005, window: int = 0) -> None:
        """Many connections, from addresses that no limit by client joins, kept open."""
        for number in range(count):
            with contextlib.suppress(OSError):
                connection = socket.socket()
                if window:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
                connection.settimeout(0.2)
                connection.bind((f"127.0.{number % 40}.2", 0))
                self.ground.held.append(connection)
                connection.connect(("127.0.0.1", self._port(to)))
                connection.send(first.replace("\n", "\r\n").encode())

    def drip(self, to: str, first: str, seconds: float) -> None:
        """Sends a request byte by byte."""
        connection = self.ground.connect(self._port(to))
        with contextlib.suppress(OSError):
            for byte in first.replace("\n", "\r\n").encode():
                connection.send(bytes([byte]))
                time.sleep(seconds)

    def kmsg(self, *records: str, level: int = 3) -> None:
        """What the kernel writes for a process of the attacker, with the attacker's names in it."""
        now = time.time_ns() // 1000
        lines = (f"{level},{now + n},{now + n},-;{text}\n" for n, text in enumerate(records))
        with (self.ground.root.parent / "kmsg").open("a", encoding="utf-8") as file:
            file.writelines(lines)

    def sh(self, words: str) -> None:
        """Runs a shell as the attacker; what it leaves in the background lives on."""
        done = subprocess.run(
            ["bash", "-c", words], capture_output=True, timeout=18, check=False,
            cwd=self.ground.jobs, env=os.environ | _names(self.ground) | {"NAME": self.ground.name},
        )  # fmt: skip
        self.got.append((done.stdout + done.stderr).decode("utf-8", "replace"))

    def spool(self, *events: dict[str, Any], count: int = 0) -> None:
        """Writes events of the attacker's job, these in turn up to a count."""
        lines = []
        for n in range(count or len(events)):
            event = _filled(events[n % len(events)], {"N": n, "C": str(n % 100)})
            later = event.pop("later", 0)
            event = self.ground.event(**{"id": f"{self.ground.name}-{n}", "kind": "hang"} | event)
            lines.append(json.dumps(event | {"time": event["time"] + later}))
        self.ground.spool(*lines)

    def flow(self, count: int, seconds: int) -> None:
        """Appends events to the spool of the attacker's job, so many a second."""
        self.ground.spool()
        path = self.ground.jobs / self.ground.name / "events.jsonl"
        if os.fork() == 0:
            for second in range(seconds):
                events = (self.ground.event("hang", id=f"{second}-{n}") for n in range(count))
                with path.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(event) + "\n" for event in events)
                time.sleep(1.0)
            os._exit(0)

    def page(self, *texts: dict[str, Any], count: int = 1, jobs: bool = False) -> None:
        """Pages of living ranks in the attacker's job, or in a job each, with these texts."""
        ground = self.ground
        for n in range(max(count, len(texts))):
            words = _filled(texts[n % len(texts)], {"N": n}) if texts else {}
            job = ground.job(f"g{n}") if jobs else ground.jobs / ground.name if n else None
            ground.page(0 if jobs else n, job, **words)

    def serve(self, port: int, answer: str, repeat: int = 1, pause: float = 0.0) -> None:
        """Answers every request on a port of the loopback, in pieces and slowly where so told."""

        class Says(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    for _ in range(repeat):
                        self.wfile.write(answer.encode())
                        time.sleep(pause)

            do_POST = do_GET  # noqa: N815  # the name that the library calls
            log_message = staticmethod(lambda *_: None)  # type: ignore[assignment]  # says nothing

        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Says)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def listen(self, *addresses: str) -> None:
        """Takes addresses and Unix sockets, and says which it got."""
        for address in addresses:
            host, colon, port = address.rpartition(":")
            kind = (
                socket.AF_UNIX if not colon else socket.AF_INET6 if ":" in host else socket.AF_INET
            )
            server = socket.socket(kind)
            self.ground.held.append(server)
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT) * bool(colon):
                server.setsockopt(socket.SOL_SOCKET, option, 1)
            with contextlib.suppress(OSError):
                server.bind((host, int(port)) if colon else address)
                server.listen()
                self.got.append(f"bound {address}")

    def swap(self, first: str, second: str, count: int) -> None:
        """Renames one path to another and back, without a pause."""
        if os.fork() == 0:
            for n in range(2 * count):
                with contextlib.suppress(OSError):
                    Path((first, second)[n % 2]).rename((second, first)[n % 2])
            os._exit(0)


def _act(steps: list[dict[str, Any]]) -> Callable[[Ground], None]:
    def act(ground: Ground) -> None:
        hand, names = Hand(ground), _names(ground) | {"NAME": ground.name}
        for step in steps:
            [(verb, words)] = [(name, words) for name, words in step.items() if name != "each"]
            for n, each in enumerate(step.get("each", [""])):
                filled = _filled(words, names | {"N": n, "EACH": _filled(each, names)})
                options = filled if isinstance(filled, dict) else {}
                items = filled if isinstance(filled, list) else [filled] * (not options)
                getattr(hand, verb)(*options.pop("of", items), **options)
        ground.obtained = "\n".join(hand.got)

    return act


def _judge(entry: dict[str, Any]) -> Callable[["Arena", str], str]:
    def judge(arena: "Arena", obtained: str) -> str:
        output = _operate(arena, entry["operator"]) if "operator" in entry else ""
        texts = {"answer": obtained, "never": obtained, "shows": output, "hides": output}
        for name, text in texts.items():
            found = name not in entry or re.search(entry[name], text, re.DOTALL)
            if name in {"never", "hides"} and name in entry and found:
                return f"{entry[name]!r} is in {text[-300:]!r}"
            if name in {"answer", "shows"} and not found:
                return f"{entry[name]!r} is not in {text[-600:]!r}"
        incidents = arena.new_incidents()
        counts = entry["kind"] in {"kernel_text", "logs"} and "hides" not in entry
        return incidents if counts else ""

    return judge


def _operate(arena: "Arena", words: str) -> str:
    """What root, or the neighbour by ``bob``, does after the attack; its output and its status."""
    home = arena.base / "operator"
    home.mkdir(exist_ok=True)
    prefix = " ".join([*users.VICTIM.prefix(), "env", f"HOME={arena.base / 'victim'}"])
    functions = (
        f'lockstep() {{ python -P -m lockstep_cli.main "$@"; }}\nbob() {{ {prefix} "$@"; }}\n'
        f"queries() {{ python -P -c '{_QUERIES}' {arena.base}/queries.log; }}\n"
    )
    names = _names(arena) | {"PROM": str(arena.prometheus_port)}
    limits = ["prlimit", "--as=8589934592", "--fsize=536870912", "bash", "-c"]
    try:
        done = subprocess.run(
            [*limits, f"{functions}{words}\necho status $?"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=home, check=False,
            env=users.environment(home) | names, timeout=_OPERATOR_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return f"hangs: {error.stdout!r:.300}"
    with contextlib.suppress(OSError):
        Path("/tmp/lockstep-strangers-pwned").unlink()  # noqa: S108  # an attack may have made it
        return "PWNED"
    return done.stdout.decode("utf-8", "replace")


def _register(entry: dict[str, Any]) -> None:
    name = entry["id"] if entry["kind"] in _BY_NAME else f"{entry['id']}_{entry['kind']}"
    act, seconds = _act(entry.get("do", [])), float(entry.get("seconds", 1.0))
    register(Attack(name, entry["kind"], entry["what"], act, seconds, _judge(entry)))


for _entry in yaml.safe_load(Path(__file__).with_name("attacks.yaml").read_text(encoding="utf-8")):
    _register(_entry)
