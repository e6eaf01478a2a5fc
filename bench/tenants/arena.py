"""A node with an agent, a ledger and a neighbour's job, and what must hold after each attack."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from lockstep_catalogue import agent

from . import users
from .attacks import launched
from .programs import BOUNDS, READER, SCHEDULER, START_SECONDS, WRITER, Programs
from .users import AGENT, ROOT, VICTIM

ANSWER_SECONDS = 0.5
AGENT_BYTES = 192 << 20  # MemoryMax of deploy/systemd/lockstep-agent.service
LEDGER_BYTES = 320 << 20
MOST_SERIES = 20_000
_PROGRAM_SECONDS = 25.0
_FRESH_SECONDS = 3.0
_TRIES = 3
# Of the control group and the network namespace, which all processes of this machine share.
_SHARED = re.compile(r"\w+_host_job_")
_STALLED = re.compile(agent.WORKER_STALLED.name + r'{.*worker="([^"]+)".*} 1')
_CRASHED = re.compile(agent.COLLECTOR_SUCCESS.name + r'{.*collector="([^"]+)".*} 0')
_TICK = re.compile(agent.AGENT_TICK.name + r"{.*} (\S+)")
_INCIDENT = re.compile(r"\w*(?:xid|incident|fault|event)\w*_total{")
_OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_COUNTED = frozenset({"gpu_seconds", "heard", "unknown"})
_CLOCK_SECONDS = 3.0  # GPU time counts in whole seconds
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _without_counts(record: Any) -> Any:
    """A record without what counts up to the moment at which it is read."""
    if isinstance(record, dict):
        return {k: _without_counts(v) for k, v in record.items() if k not in _COUNTED}
    return [*map(_without_counts, record)] if isinstance(record, list) else record


def _gpu_time_begin(record: dict[str, Any]) -> float:
    """Wall clock at which the GPU time of a job that goes on would have begun."""
    return float(time.time() - record["gpu_seconds"] / record["runs_list"][-1]["gpus"])


class Arena(Programs):
    """The programs of one node; ``attack`` is the name of the attack under way."""

    def __init__(self) -> None:
        super().__init__()
        self.attack = ""

    def settle(self) -> None:
        """Waits until the neighbour's series, record and report are whole and remembers them."""
        self._schedule()
        deadline = time.monotonic() + START_SECONDS
        while len(self._series(self._scrape() or "")) < 100 or not self._record_is_whole():  # noqa: PLR2004  # a share or a figure of this line
            assert time.monotonic() < deadline, "the neighbour's job never becomes visible"
            time.sleep(0.2)
        time.sleep(11.5)  # every tier has run
        self._threads = self._thread_count()
        self._incidents = self._incident_lines()
        self.report = self._report()
        self.before = self._state()
        assert not self.complaint(), self.complaint()

    def _schedule(self) -> None:
        """The scheduler's word on the neighbour's job: its user, its node, its project."""
        fields = {"uid": VICTIM.uid, "project": "speech", "user": "bob", "nodes": ["node-7"]}
        event = {"id": "feed-1", "kind": "job_started", "job_id": "victim", "attempt": 0}
        event |= {"time": time.time() - 100, "fields": {**fields, "num_gpus": 4, "num_nodes": 1}}
        body = json.dumps({"version": 1, "cluster": "east", "events": [event]}).encode()
        self.get(self.ledger_port, "/api/events", SCHEDULER, body)

    def _record_is_whole(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return b"victim-2" in self.read_ledger("/api/jobs/victim")
        return False

    def get(
        self, port: int, path: str, token: str = "", body: bytes | None = None, accept: str = ""
    ) -> bytes:
        """An answer with status 200 in time.

        Raises:
            OSError: None came in time, in none of three tries.
        """
        error: OSError = OSError("no answer")
        for _ in range(_TRIES):
            begin = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
            headers = {"Content-Type": "application/json", "Connection": "close"}
            if accept:
                headers["Accept"] = accept
            if token:
                headers["Authorization"] = f"Bearer {token}"
            try:
                connection.request("POST" if body else "GET", path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as failure:
                error = OSError(f"{path}: {failure!r}")
                continue
            finally:
                connection.close()
            if answer.status != http.client.OK:
                error = OSError(f"{path} is answered {answer.status}")
            elif (seconds := time.monotonic() - begin) <= ANSWER_SECONDS:
                return content
            else:
                error = OSError(f"{path} takes {seconds:.1f} s")
        raise error

    def read_ledger(self, path: str) -> bytes:
        """An answer of the ledger to a reader."""
        return self.get(self.ledger_port, path, READER)

    def _scrape(self) -> str | None:
        with contextlib.suppress(OSError):
            return self.get(self.agent_port, "/metrics").decode()
        return None

    @staticmethod
    def _series(scrape: str) -> list[str]:
        return sorted(
            line
            for line in scrape.splitlines()
            if 'job_id="victim"' in line and not _SHARED.match(line)
        )

    def _state(self) -> dict[str, Any]:
        job = self.root / "jobs" / "victim"
        record = json.loads(self.read_ledger("/api/jobs/victim"))
        return {
            "bill": self._bill(),
            "series": self._series(self._scrape() or ""),
            "events": (job / "events.jsonl").read_bytes(),
            "files": sorted(path.name for path in job.rglob("*")),
            "record": _without_counts(record),
            "GPU time": _gpu_time_begin(record),
        }

    def _bill(self) -> list[str]:
        """The lines of the neighbour, and whose money somebody vouches for, without amounts."""
        lines = json.loads(self.read_ledger("/api/statement"))["lines"]
        names = ("project", "user", "gpu_model", "price", "currency", "voucher")
        own = [line for line in lines if line["job_id"] == "victim"]
        vouched = {(line["project"], line["voucher"]) for line in lines} - {("", "nobody")}
        return [str([line.get(name) for name in names]) for line in own] + [*map(str, vouched)]

    def complaint(self) -> str:
        """What is wrong now with agent, ledger or the neighbour's job, or nothing."""
        try:
            return (
                self._check_programs()
                or self._check_agent()
                or self._check_ledger()
                or self._check_state()
            )
        except OSError as error:
            return str(error)

    def _check_programs(self) -> str:
        for process, name in ((self.agent, "agent"), (self.ledger, "ledger")):
            if process.poll() is not None:
                return f"the {name} ended with status {process.returncode}"
        limits = ((self.agent, "agent", AGENT_BYTES), (self.ledger, "ledger", LEDGER_BYTES))
        for process, name, limit in limits:
            text = Path(f"/proc/{process.pid}/statm").read_text()
            if (size := int(text.split()[1]) * 4096) > limit:
                return f"the {name} takes {size >> 20} MiB"
        return ""

    def _check_agent(self) -> str:
        self.get(self.agent_port, "/healthz")
        self.get(self.agent_port, "/metrics", accept=_OPENMETRICS)
        scrape = self.get(self.agent_port, "/metrics").decode()
        if found := _STALLED.search(scrape):
            return f"the lane {found[1]} hangs"
        if found := _CRASHED.search(scrape):
            return f"the collector {found[1]} fails for all jobs"
        if scrape.count("\n") > MOST_SERIES:
            return f"/metrics has {scrape.count(chr(10)):,} lines"
        tick = _TICK.search(scrape)
        if tick is None or time.time() - float(tick[1]) > _FRESH_SECONDS:
            return "the agent no longer ticks"
        if self._thread_count() < self._threads:
            return f"{self._threads - self._thread_count()} threads of the agent ended"
        return ""

    def _thread_count(self) -> int:
        return len(list(Path(f"/proc/{self.agent.pid}/task").iterdir()))

    def _check_ledger(self) -> str:
        self.get(self.ledger_port, "/healthz")
        self.get(self.ledger_port, "/ready")
        lines = self.read_ledger("/metrics").count(b"\n")
        if lines > MOST_SERIES:
            return f"/metrics of the ledger has {lines:,} lines"
        event: dict[str, Any] = {"kind": "hang_ended", "job_id": "pulse"}
        event |= {
            "id": f"pulse-{time.time_ns()}",
            "attempt": 0,
            "time": time.time(),
            "fields": {"seconds": 1.0},
        }
        body = {"version": 1, "cluster": "east", "node": "node-7", "events": [event]}
        answer = self.get(self.ledger_port, "/api/events", WRITER, json.dumps(body).encode())
        return f"a good event is refused: {answer!r}" if event["id"].encode() in answer else ""

    def _check_state(self) -> str:
        now = self._state()
        for name, value in self.before.items():
            if isinstance(value, float):
                is_same = abs(now[name] - value) < _CLOCK_SECONDS
            else:
                is_same = now[name] == value
            if not is_same:
                return f"the neighbour's {name} changed: {_difference(value, now[name])}"
        return ""

    def _report(self) -> bytes:
        return self._run(VICTIM, "report", self.root / "jobs" / "victim", "--json", "-").stdout

    def report_complaint(self) -> str:
        """Whether the neighbour's report is what it was."""
        now = self._report()
        if now == self.report:
            return ""
        return f"the neighbour's report changed: {_difference(self.report, now)}"

    def _run(self, user: users.User, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
        home = self.base / ("victim" if user is VICTIM else "agent")
        return subprocess.run(
            [*BOUNDS, *users.command(user, *words)],
            capture_output=True,
            timeout=_PROGRAM_SECONDS,
            check=False,
            cwd=home,
            env=users.environment(home) | {"LOCKSTEP_DIR": str(self.root)},
        )

    def command_is_clean(self, *words: str | Path, user: users.User = ROOT) -> str:
        """Runs a command for people; it ends in time and writes nothing that steers a terminal."""
        try:
            done = self._run(user, *words)
        except subprocess.TimeoutExpired:
            return f"lockstep {words[0]} hangs"
        if done.returncode < 0:
            return f"lockstep {words[0]} dies of signal {-done.returncode}"
        text = (done.stdout + done.stderr).decode("utf-8", "replace")
        if found := _CONTROL.search(text):
            return f"lockstep {words[0]} writes {found[0]!r} to the terminal"
        if "Traceback (most recent call last)" in text:
            return f"lockstep {words[0]} ends with {text.strip().splitlines()[-1][:200]}"
        return ""

    def report_on(self, source: Path, *, as_root: bool = False) -> str:
        """Reports on a hostile source, to the terminal and as a page."""
        page = self.base / "report.html"
        user = ROOT if as_root else AGENT
        if not as_root:
            page = self.base / "agent" / "report.html"
        complaint = self.command_is_clean("report", source, "--html", page, user=user)
        if not complaint and page.exists() and self.private_text in page.read_bytes():
            complaint = "the report shows another user's private file"
        page.unlink(missing_ok=True)
        if Path("/tmp/lockstep-tenants-bomb").exists():  # noqa: S108  # named in the attack
            Path("/tmp/lockstep-tenants-bomb").unlink()  # noqa: S108  # as above
            complaint = "the report runs a program of the attacker"
        return complaint

    def launch(self, job_id: str, program: str) -> tuple[subprocess.CompletedProcess[bytes], float]:
        """Starts a job of the neighbour by ``lockstep run``; its end, and its seconds."""
        script = self.base / "victim" / "program.py"
        self._write(script, program.encode(), VICTIM)
        words = users.command(VICTIM, "run", "--dir", self.root, "--job-id", job_id, script)
        begin = time.monotonic()
        process = users.start(
            words, self.base / "victim", self.base / "launch.log", start_new_session=True
        )
        try:
            process.wait(_PROGRAM_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        script.unlink()
        return subprocess.CompletedProcess(words, process.wait()), time.monotonic() - begin

    def found_by_attacker(self, word: str) -> str:
        """First file below the folder of jobs that the attacker can read and that has the word."""
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            users.ATTACKER.become()
            os.write(write, launched.readable_with(self.root / "jobs", word).encode())
            os._exit(0)
        os.close(write)
        with open(read, "rb") as file:  # noqa: PTH123  # by its descriptor
            found = file.read().decode()
        os.waitpid(pid, 0)
        return found

    def _incident_lines(self) -> set[str]:
        lines = (self._scrape() or "").splitlines()
        return {line for line in lines if _INCIDENT.match(line) and not line.endswith(" 0.0")}

    def new_incidents(self) -> str:
        """Faults of GPUs, ports and host that the kernel's log is said to report."""
        new = {
            line
            for line in self._incident_lines() - self._incidents
            if not re.search("oom|delivery|hung_task|log_messages", line)
        }
        self._incidents |= new
        return f"the agent counts {sorted(new)[:2]}" if new else ""

    def undo(self) -> None:
        """Removes all jobs but the neighbour's, their archive, and what got into a home."""
        archived = self.base / "agent" / "archive" / "jobs"
        homes = [self.base / "victim", *([archived] if archived.is_dir() else [])]
        for path in (path for folder in (self.root / "jobs", *homes) for path in folder.iterdir()):
            if path.name == "victim":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _difference(before: object, now: object) -> str:
    """First of what is gone, new or changed."""
    if isinstance(before, list) and isinstance(now, list):
        gone = [line for line in before if line not in now]
        new = [line for line in now if line not in before]
        return f"{len(gone)} gone, {len(new)} new, such as {(new or gone)[0]}"
    if isinstance(before, dict) and isinstance(now, dict):
        names = [name for name in now if now[name] != before.get(name)]
        return ", ".join(f"{name} = {str(now[name])[:60]}" for name in names[:4])
    return f"{len(bytes(str(now), 'utf-8'))} bytes"
