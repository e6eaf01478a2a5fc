"""Attacks that people wrote who had not read the code, as data: ``strangers.yaml``."""

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tenants import programs, users
from tenants.table import Attack, Ground, register

if TYPE_CHECKING:
    from tenants.arena import Arena

_PATH = Path(__file__).with_suffix(".yaml")
_OPERATOR_SECONDS = 60.0
_QUERIES = 'import json, sys; [print(json.loads(x)["params"]["query"]) for x in open(sys.argv[1])]'
_TOKENS = {"agent": programs.WRITER, "launcher": programs.LAUNCHER, "guest": "g" * 24}


def _namespace(ground: Ground) -> dict[str, Any]:
    """What the code of an attack may call; what it obtains is the text that it adds to ``got``."""
    got: list[str] = []

    def say(kind: str, job_id: str, speaker: str = "launcher", **members: Any) -> None:
        frame = {"version": 1, "cluster": "east", "node": "node-7", **members.pop("frame", {})}
        fields = members.pop("fields", {})
        name = f"{ground.name}-{len(got)}-{time.time_ns()}"
        event = {"id": name, "kind": kind, "job_id": job_id, "attempt": 0, "time": time.time() - 1}
        event |= {"fields": fields, **members}
        frame = {name: value for name, value in frame.items() if value is not None}
        event = {name: value for name, value in event.items() if value != "ABSENT"}
        body = json.dumps({**frame, "events": [event]}).encode()
        answer = ground.post(body, token=_TOKENS[speaker]).decode("utf-8", "replace")
        got.append(f"{answer[:20]} {answer[-600:]}")

    def ask(port: int, text: str | bytes, *, read: bool = True) -> None:
        data = text if isinstance(text, bytes) else text.replace("\n", "\r\n").encode("latin-1")
        got.append(ground.send(port, data, read=read).decode("utf-8", "replace")[:4000])

    def kmsg(*records: str) -> None:
        now = time.time_ns() // 1000
        lines = "".join(f"3,{now + n},{now + n},-;{text}\n" for n, text in enumerate(records))
        with (ground.root.parent / "kmsg").open("a", encoding="utf-8") as file:
            file.write(lines)

    def run(words: str) -> None:
        done = subprocess.run(["sh", "-c", words], capture_output=True, timeout=15, check=False)
        got.append((done.stdout + done.stderr).decode("utf-8", "replace"))

    return {"ground": ground, "got": got, "say": say, "ask": ask, "kmsg": kmsg, "run": run}


def _act(code: str) -> Callable[[Ground], None]:
    def act(ground: Ground) -> None:
        namespace = _namespace(ground)
        exec(compile(code, str(_PATH), "exec"), namespace)  # noqa: S102  # of the table of this bench
        ground.obtained = "\n".join(namespace["got"])

    return act


def _judge(entry: dict[str, str]) -> Callable[["Arena", str], str]:
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
        return incidents if entry["kind"] == "kernel_text" and "hides" not in entry else ""

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
    names = {
        "BASE": arena.base, "JOBS": arena.root / "jobs", "EVE": arena.base / "attacker",
        "DIR": arena.root, "READER": programs.READER, "AGENT": arena.agent_port,
        "LEDGER": arena.ledger_port, "PAGER": arena.pager_port, "BOARDS": arena.boards_port,
        "PROM": arena.prometheus_port, "STATE": arena.base / "agent" / "state",
        "REPO": users.REPOSITORY,
    }  # fmt: skip
    env = users.environment(home) | {name: str(value) for name, value in names.items()}
    limits = ["prlimit", "--as=8589934592", "--fsize=536870912", "bash", "-c"]
    try:
        done = subprocess.run(
            [*limits, f"{functions}{words}\necho status $?"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=home, env=env, check=False,
            timeout=_OPERATOR_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return f"hangs: {error.stdout!r:.300}"
    with contextlib.suppress(OSError):
        Path("/tmp/lockstep-strangers-pwned").unlink()  # noqa: S108  # an attack may have made it
        return "PWNED"
    return done.stdout.decode("utf-8", "replace")


for _entry in yaml.safe_load(_PATH.read_text(encoding="utf-8")):
    _name = _entry["id"] if _entry["kind"] == "http" else f"{_entry['id']}_{_entry['kind']}"
    _seconds = float(_entry.get("seconds", 1.0))
    _doing, _judging = _act(_entry.get("do", "")), _judge(_entry)
    register(Attack(_name, _entry["kind"], _entry["what"], _doing, _seconds, _judging))
