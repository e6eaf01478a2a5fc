"""One row on the stage: its node with an agent, its job, what is done to them, what came of it."""

import json
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lockstep_cli.gameday.fake_node import FakeNode, Tree, h100, write
from lockstep_cli.gameday.rows import Action, Job, Row
from lockstep_cli.gameday.stage import Notification, Stage, end
from lockstep_cli.small_server import free_port
from lockstep_records.files.jobs import list_attempts, pages_of
from lockstep_records.page.reader import PageError, read_rows
from lockstep_records.text.durations import parse_duration

_MODEL = (
    *("--layers", "2", "--width", "32", "--heads", "2", "--sequence", "32", "--batch", "4"),
    *("--eval-every", "0", "--grace", "5s", "--stop-check-every", "1", "--eval-windows", "1"),
)
_PACE = "slow-optimizer"
_WARM_STEPS = 20
_PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
_PAUSES = ("checkpoint", "eval")  # writing a checkpoint again is not rework
_SETTLED_SECONDS = 90.0
_READY_SECONDS = 20.0
_PRESSURE = Path("/proc/pressure/cpu")
_FAULT = re.compile(r"fault: (\S+) rank=(\d+) step=(\d+)")


@dataclass(kw_only=True)
class Node:
    """A fake node and its agent."""

    name: str
    root: Path
    sysfs: Path
    kernel_log: Path
    gpus: FakeNode
    address: str
    agent: subprocess.Popen[bytes] = field(init=False)


@dataclass(kw_only=True)
class Truth:
    """What was done and happened, measured by the row's own processes and rank pages.

    Attributes:
        began: when the failure began, seconds since the epoch.
        ended: when the last launcher ended.
        ranks: of the job.
        fault_steps: steps in which the trainer announced the fault.
        redone_seconds: rank-seconds of steps that an earlier attempt had done.
        down_seconds: from the last step of an attempt to the first of the next, over all.
        steps_lost: steps done again after a restart, the most of any.
        exit_status: of the last launcher; None where it had to be killed.
        step_before, step_after: median seconds of a step, before the failure and at the end.
        machine_waited_ratio: of the worst minute in which something on this machine waited for a
            processor, as the kernel knows it; 0 where it does not tell.
    """

    began: float = 0.0
    ended: float = 0.0
    ranks: int = 0
    fault_steps: int = 0
    redone_seconds: float = 0.0
    down_seconds: float = 0.0
    steps_lost: int = 0
    attempts: int = 0
    exit_status: int | None = None
    step_before: float = 0.0
    step_after: float = 0.0
    machine_waited_ratio: float = 0.0

    @property
    def stood_seconds(self) -> float:
        """From the failure to the end of the job."""
        return self.ended - self.began


@dataclass(kw_only=True)
class Observed:
    """Everything that is judged."""

    truth: Truth
    notifications: list[Notification]
    record: Mapping[str, Any] = field(default_factory=dict)
    headline: str = ""


class Scene:
    """Plays one row; leaving it ends its processes.

    Attributes:
        stage, row: see there.
        nodes: of the job, in order.
        launchers: of the job that runs, one a node.
        variables: what actions keep for later ones.
        environment, agent_words: of agents and ranks that start from now on; of agents.
    """

    def __init__(
        self, stage: Stage, row: Row, perform: Callable[["Scene", str, Any], None]
    ) -> None:
        self.stage, self.row, self._perform = stage, row, perform
        self.folder = stage.folder / "rows" / row.row
        self.folder.mkdir(parents=True)
        self.memory = stage.memory / row.row
        self.nodes, self.launchers = list[Node](), list[subprocess.Popen[bytes]]()
        self.variables = dict[str, Any]()
        self.environment, self.agent_words = dict[str, str](), tuple[str, ...]()
        self.truth = Truth(ranks=(row.job and row.job.ranks) or 0)
        self._waiting = list(row.actions)
        self._moments = dict[str, float]()
        self._launches = 0
        self.open = ExitStack()

    def play(self) -> Observed:
        """The row from its nodes to its report."""
        with self.open:
            self._start_nodes(self.row.job.nodes if self.row.job else 1)
            self._reach("start")
            self._act(0)
            if self.row.job:
                self.launch(self.row.job)
            deadline = parse_duration(self.row.limit)
            self.stage.wait(deadline, self._is_over)
            return self._conclude()

    def _start_nodes(self, count: int) -> None:
        for index in range(count):
            self.nodes.append(self._start_node(f"{self.row.node}{index}"))
        self.stage.wait(_READY_SECONDS, lambda: all(map(_answers, self.nodes)))

    def _start_node(self, name: str) -> Node:
        folder = self.memory / name
        root, sysfs = folder / "lockstep", folder / "sys"
        root.mkdir(parents=True)
        num_gpus = max(1, self.truth.ranks // (self.row.job.nodes if self.row.job else 1))
        gpus = FakeNode(folder / "gpus", [h100() for _ in range(num_gpus)])
        Tree(sysfs, gpus=num_gpus, infiniband=2, ethernet=0)
        kernel_log = folder / "kmsg"
        write(kernel_log, "")
        node = Node(
            name=name,
            root=root,
            sysfs=sysfs,
            kernel_log=kernel_log,
            gpus=gpus,
            address=f"127.0.0.1:{free_port()}",
        )
        self._start_agent(node)
        self.stage.target(node.address)
        self.open.callback(self.stage.target, node.address, is_added=False)
        return node

    def _start_agent(self, node: Node) -> None:
        nvml = ("--nvml-library", str(self.stage.nvml)) if self.stage.nvml else ()
        state = str(node.root.parent / "state")
        node.agent = self.stage.start(
            self.agent_name(node),
            *("agent", "--listen", node.address, "--dir", str(node.root)),
            *("--cluster", self.row.cluster, "--node", node.name, "--state", state),
            *("--scrape-interval", "5s", "--sysfs", str(node.sysfs)),
            *("--kmsg", str(node.kernel_log), "--ledger", f"{self.stage.ledger}/api/events"),
            *(*nvml, *self.agent_words, *self.row.agent),
            folder=self.folder,
            NVML_STUB_STATE=str(node.gpus.path),
            **self.environment,
        )
        self.open.callback(end, node.agent)

    def agent_name(self, node: Node) -> str:
        """By which the stage knows its agent."""
        return f"agent-{self.row.row}-{node.name}"

    def restart_agents(self) -> None:
        """Starts all agents anew, with the environment and the words of now."""
        for node in self.nodes:
            end(node.agent)
            self._start_agent(node)
        self.stage.wait(_READY_SECONDS, lambda: all(map(_answers, self.nodes)))

    def launch(self, job: Job) -> None:
        """Starts the job, one launcher a node, or starts it again."""
        self._launches += 1
        assert job.ranks is not None
        endpoint = ("--nnodes", str(job.nodes), "--endpoint", f"127.0.0.1:{free_port()}")
        words = (*self._words(job, self.row.row), *(endpoint if job.nodes > 1 else ()))
        self.launchers = [
            self.stage.start(
                f"train-{node.name}",
                *(*words, "--dir", str(node.root)),
                *(("--node-rank", str(index)) if job.nodes > 1 else ()),
                folder=self.folder,
                LOCKSTEP_NODE=node.name,
                **{**self.environment, **job.environment},
            )
            for index, node in enumerate(self.nodes)
        ]
        for launcher in self.launchers:
            self.open.callback(end, launcher)

    def _words(self, job: Job, job_id: str) -> tuple[str, ...]:
        assert job.ranks is not None
        pace = f"{_PACE}:rank=all,step=1,until=end,attempt=all,delay={job.pace}"
        faults = (pace, *job.faults) if job.pace != "0s" else job.faults
        checkpoints = ("--checkpoint-dir", str(self.memory / "checkpoints"), "--resume")
        return (
            *("train", "--job-id", job_id, "--cluster", self.row.cluster, *_MODEL),
            *("--nproc-per-node", str(job.ranks // job.nodes)),
            *("--strategy", job.strategy or "ddp", "--steps", str(job.steps)),
            *("--max-restarts", str(job.max_restarts), "--job-class", job.job_class),
            *(checkpoints if job.checkpoint_every else ()),
            *("--checkpoint-every", str(job.checkpoint_every)),
            *(word for fault in faults for word in ("--fault", fault)),
            *job.flags,
        )

    def start_other(self, job: Job, job_id: str) -> subprocess.Popen[bytes]:
        """Starts another job on the first node."""
        node = self.nodes[0]
        words = (*self._words(job, job_id), "--dir", str(node.root))
        return self.stage.start(
            job_id, *words, folder=self.folder, LOCKSTEP_NODE=node.name, **self.environment
        )

    def end_job(self) -> None:
        """Ends the launchers by SIGTERM."""
        for launcher in self.launchers:
            end(launcher)

    @property
    def job(self) -> Path:
        """The job's folder on its first node."""
        return self.nodes[0].root / "jobs" / self.row.row

    def step(self) -> int:
        """The newest step of any rank; -1 before the first."""
        return max((page.state["step"] or -1 for page in self.pages()), default=-1)

    def pages(self) -> list[Any]:
        """Pages of the newest attempt, of all nodes."""
        pages = []
        for node in self.nodes:
            with suppress(OSError):
                folder = node.root / "jobs" / self.row.row
                pages += [page for each in list_attempts(folder)[-1:] for page in pages_of(each)]
        return pages

    def _occupy_gpus(self) -> None:
        """Has the drivers list the ranks as processes on their GPUs, which tells whose they are."""
        pages = [page.identity for page in self.pages()]
        pids = {(page["node"], page["local_rank"]): page["pid"] for page in pages}
        if pids == self.variables.get("pids"):
            return
        self.variables["pids"] = pids
        for node in self.nodes:
            for index in range(len(node.gpus.gpus)):
                node.gpus.set(index, f"{_PROCESSES}.pid", pids.get((node.name, index)))

    def _reach(self, moment: str) -> None:
        self._moments.setdefault(moment, time.time())

    def _is_over(self) -> bool:
        """Whether all is done and seen; called again and again."""
        step = self.step()
        self._occupy_gpus()
        self._note_faults()
        self._note_load()
        if self.truth.began and self._is_notified():
            self._reach("notified")
        if len(self._attempts()) > 1 and step > 0:
            self._reach("recovered")
        self._act(step)
        if any(launcher.poll() is None for launcher in self.launchers):
            return False
        if self.row.job and self._launches < self.row.job.launches:
            self.launch(self.row.job)
            return False
        self.truth.ended = self.truth.ended or time.time()
        self.truth.began = self.truth.began or self.truth.ended
        return "notified" in self._moments and not self._waiting

    def _act(self, step: int) -> None:
        for action in list(self._waiting):
            if action.at.startswith("step ") and step >= int(action.at.split()[1]):
                self._reach(action.at)
            reached = self._moments.get(action.at)
            if reached is not None and time.time() >= reached + parse_duration(action.after):
                self._waiting.remove(action)
                self._do(action)

    def _do(self, action: Action) -> None:
        self._perform(self, action.name, action.argument)
        if action.at.startswith("step ") or action.after != "0s":
            self._begin()

    def _begin(self) -> None:
        """The failure begins."""
        if not self.truth.began:
            self.truth.began = time.time()
            self.truth.step_before = self._median_step()

    def _median_step(self) -> float:
        """Median seconds of the steps that the pages hold, but the first twenty; 0 without any."""
        rows = [row for page in self.pages() for row in _rows_of(page) if row["step"] > _WARM_STEPS]
        return statistics.median(row["seconds"] for row in rows) if rows else 0.0

    def _note_faults(self) -> None:
        """The begin of the failure, by the lines in which the trainer announces it."""
        if "fault" in self._moments or not self.row.job:
            return
        if any(True for _ in self._fault_lines()):
            self._reach("fault")
            self._begin()

    def _note_load(self) -> None:
        with suppress(OSError, IndexError):
            percent = float(_PRESSURE.read_text().split("avg60=")[1].split()[0])
            self.truth.machine_waited_ratio = max(self.truth.machine_waited_ratio, percent / 100)

    def _fault_lines(self) -> Iterator[tuple[str, int, int]]:
        """Kind, rank and step of each fault but the pace."""
        for node in self.nodes:
            log = self.folder / f"train-{node.name}.log"
            if log.exists():
                for kind, rank, step in _FAULT.findall(log.read_text(errors="replace")):
                    if kind != _PACE:
                        yield kind, int(rank), int(step)

    def notifications(self) -> list[Notification]:
        """What was notified of this row; of one with a stage of its own all that was."""
        if self.row.exclusive:
            return self.stage.all_notifications()
        return self.stage.notifications(self.row.cluster, self._is_own)

    def _is_own(self, labels: Mapping[str, str]) -> bool:
        """Whether an alert of the cluster is on this row's job, or on a node of it."""
        job, node = labels.get("job_id", ""), labels.get("node", "")
        has_cluster = self.row.cluster == self.row.row
        return has_cluster or job == self.row.row or (not job and node.startswith(self.row.node))

    def _is_notified(self) -> bool:
        """Whether all that is expected has come or is late, and nothing more for a while."""
        now, began = time.time(), self.truth.began
        received = self.notifications()
        last = max(
            (
                next(
                    (
                        each.wall_seconds
                        for each in received
                        if any(map(notice.matches, each.alerts))
                    ),
                    began + notice.within_seconds + 10,
                )
                for notice in self.row.expect.notices
            ),
            default=began,
        )
        return now > last + parse_duration(self.row.expect.watch)

    def _attempts(self) -> list[Path]:
        with suppress(OSError):
            return list_attempts(self.job)
        return []

    def _conclude(self) -> Observed:
        self.end_job()
        self.truth.exit_status = next((each.returncode for each in self.launchers), None)
        self.truth.ended = self.truth.ended or time.time()
        self._measure()
        observed = Observed(truth=self.truth, notifications=self.notifications())
        if self.row.job:
            self.stage.wait(_SETTLED_SECONDS, lambda: self._is_settled(observed))
            observed.headline = self._report()
        self._keep(observed)
        return observed

    def _is_settled(self, observed: Observed) -> bool:
        address = f"{self.stage.ledger}/api/jobs/{self.row.row}?cluster={self.row.cluster}"
        observed.record = json.loads(_get(address) or "{}")
        return bool(observed.record.get("outcome"))

    def _report(self) -> str:
        html, document = self.folder / "report.html", self.folder / "report.json"
        files = ("--html", str(html), "--json", str(document))
        self.stage.lockstep("report", str(self._collect()), *files, is_checked=False)
        if not document.exists():
            return ""
        return str(json.loads(document.read_text(encoding="utf-8")).get("headline", ""))

    def _collect(self) -> Path:
        """One folder of what the job left on all of its nodes, with the evidence of the row."""
        folder, events = self.folder / "job", ""
        folder.mkdir(exist_ok=True)
        for node in self.nodes:
            source = node.root / "jobs" / self.row.row
            subprocess.run(
                ["cp", "-r", "--sparse=always", f"{source}/.", folder],
                check=False,
                capture_output=True,
            )
            if (source / "events.jsonl").exists():
                events += (source / "events.jsonl").read_text(encoding="utf-8")
        (folder / "events.jsonl").write_text(events, encoding="utf-8")
        return folder

    def _measure(self) -> None:
        """Steps and times of the attempts, from the rank pages of the first node."""
        self.truth.step_after = self._median_step()
        self.truth.fault_steps = len({step for _, _, step in self._fault_lines()})
        done_step, last_end = 0, 0.0
        attempts = self._attempts()
        self.truth.attempts = len(attempts)
        for attempt in attempts:
            rows = []
            for page in pages_of(attempt):
                rows += [(row, page.wall_seconds(row["start_ns"])) for row in _rows_of(page)]
            if not rows:
                continue
            again = [row for row, _ in rows if row["step"] <= done_step]
            self.truth.redone_seconds += sum(
                row["seconds"] - sum(row["phase_seconds"][phase] or 0.0 for phase in _PAUSES)
                for row in again
            )
            redone = len({row["step"] for row in again})
            self.truth.steps_lost = max(self.truth.steps_lost, redone)
            if last_end:
                self.truth.down_seconds += min(start for _, start in rows) - last_end
            last_end = max(start + row["seconds"] for row, start in rows)
            done_step = max(done_step, *(row["step"] for row, _ in rows))

    def _keep(self, observed: Observed) -> None:
        """Writes what was observed into the folder of evidence."""
        (self.folder / "observed.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(observed), indent=1)
        )
        shutil.rmtree(self.memory, ignore_errors=True)


def _rows_of(page: Any) -> list[Any]:
    with suppress(PageError):
        return list(read_rows(page))
    return []


def _answers(node: Node) -> bool:
    return bool(_get(f"http://{node.address}/ready"))


def _get(address: str) -> str:
    """What is answered with success; empty where nothing is."""
    import httpx  # noqa: PLC0415  # half a second that --help need not wait for

    try:
        response = httpx.get(address, trust_env=False)
    except httpx.TransportError:
        return ""
    return response.text if response.is_success else ""
