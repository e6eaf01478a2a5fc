"""A real Slurm with a ledger, a feed, and an agent on each node, as on a cluster."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from servers import captured

from ..service import LedgerProcess
from . import agent as impatient_agent

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "labs" / "slurm-lab.sh"
TRAIN = Path(__file__).with_name("train.py")
NODES = {"n1": "n1", "n2": "n2"}
DAEMONS = ("mariadbd", "slurmdbd", "slurmctld", "slurmd@n1", "slurmd@n2")
# Waits of a site that has no time.
_LEDGER_OPTIONS = (
    "--cluster", "lab", "--node-wait", "2s", "--requeue-wait", "10s", "--max-rate", "10000",
)  # fmt: skip
GPU_MAP = "/run/lockstep-gpu-map"


@dataclass
class Lab:
    """One Slurm; situations take their turns in it."""

    folder: Path
    conf: str = ""
    feed_process: subprocess.Popen[bytes] | None = None
    ledger: LedgerProcess | None = None
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    num_feeds: int = 0
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60))

    # Life of the lab.

    def up(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_programs()
        conf = self.conf.replace("{deploy}", str(self.deploy))
        environment = {**os.environ, "SLURM_LAB_CONF": conf}
        done = captured(["bash", str(SCRIPT), "up", str(self.folder)], env=environment, timeout=240)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or "the lab does not start")
        self.ledger = LedgerProcess(str(self.folder / "ledger.db"), _LEDGER_OPTIONS).start()
        self.run([
            str(self.lockstep), "deploy", "slurm", "--to", str(self.deploy), "--cluster", "lab",
            "--slurm-conf", str(self.folder / "slurm.conf"), "--group", "root",
            "--gpu-map", GPU_MAP, "--ledger", self.ledger.url, "--systemd", "252",
            "--agent-port", "9",
        ])  # fmt: skip
        for node in NODES:
            self.start_agent(node)
        self.start_feed(())

    def down(self) -> None:
        self.client.close()
        self.stop_feed()
        for node in [*self.agents]:
            self.stop_agent(node)
        if self.ledger is not None and self.ledger.process is not None:
            self.ledger.kill()
        subprocess.run(
            ["bash", str(SCRIPT), "down", str(self.folder)],
            capture_output=True, check=False, timeout=180,
        )  # fmt: skip

    def write_programs(self) -> None:
        """The command as a program; its entry points are those of the checkout."""
        meta = self.folder / "meta" / "lockstep_train-0.1.0.dist-info"
        meta.mkdir(parents=True, exist_ok=True)
        (meta / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: lockstep-train\nVersion: 0.1.0\n"
        )
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        entries = project.partition('[project.entry-points."lockstep.commands"]')[2].partition(
            "\n\n"
        )[0]
        (meta / "entry_points.txt").write_text("[lockstep.commands]\n" + entries.replace('"', ""))
        self.lockstep.write_text(
            f'#!/bin/sh\nexec {sys.executable} -m lockstep_cli.main "$@"\n', encoding="ascii"
        )
        self.lockstep.chmod(0o755)
        for name, mode in (("out", 0o1777), ("jobs", 0o755)):
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name).chmod(mode)

    @property
    def lockstep(self) -> Path:
        return self.folder / "lockstep"

    @property
    def deploy(self) -> Path:
        return self.folder / "deploy"

    @property
    def environment(self) -> dict[str, str]:
        components = (
            ROOT / name
            for name in (
                "catalogue", "records", "prometheus", "outcomes", "cli", "instrumentation",
                "agent", "ledger", "alerts", "reports",
            )
        )  # fmt: skip
        path = os.pathsep.join(map(str, (self.folder / "meta", *components)))
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "LOCKSTEP"))}
        return clean | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def run(
        self, command: list[str], *, check: bool = True, timeout: float = 240
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder / "out", check=False, timeout=timeout,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"{shlex.join(command)[:200]}: {done.stdout[-600:]}")
        return done

    def lab(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        action, *rest = arguments
        return self.run(["bash", str(SCRIPT), action, str(self.folder), *rest], check=check)

    # Programs beside Slurm.

    def start_agent(self, node: str) -> None:
        assert self.ledger is not None
        self.lab("on", node, "sh", "-c", "test -e /run/no-lockstep || systemd-tmpfiles --create "
                 f"{self.deploy / 'tmpfiles.conf'}", check=False)  # fmt: skip
        command = ["bash", str(SCRIPT), "on", str(self.folder), node, sys.executable]
        command += [impatient_agent.__file__, "agent"]
        command += ["--listen", "127.0.0.1:0", "--ledger", f"{self.ledger.url}/api/events"]
        command += ["--cluster", "lab"]
        command += ["--node", node, "--kmsg", "/dev/null", "--state"]
        state = self.folder / f"agent-{node}"
        state.mkdir(exist_ok=True)
        with (self.folder / "log" / f"agent-{node}.log").open("ab") as log:
            self.agents[node] = subprocess.Popen(
                [*command, str(state)], env=self.environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def stop_agent(self, node: str) -> None:
        agent = self.agents.pop(node, None)
        if agent is not None and agent.poll() is None:
            os.killpg(agent.pid, signal.SIGTERM)
            try:
                agent.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()

    @property
    def feed_log(self) -> Path:
        return self.folder / "log" / f"feed-{self.num_feeds}.log"

    def feed_options(self) -> list[str]:
        assert self.ledger is not None
        return ["--url", self.ledger.url, "--cluster", "lab", "--every", "2s",
                "--state", str(self.folder / "feed.json")]  # fmt: skip

    def start_feed(self, options: tuple[str, ...]) -> None:
        zones = [option for option in options if option.startswith("TZ=")]
        environment = self.environment | dict(zone.split("=", 1) for zone in zones)
        self.num_feeds += 1
        given = [option for option in options if option not in zones]
        with self.feed_log.open("ab") as log:
            self.feed_process = subprocess.Popen(
                [str(self.lockstep), "ledger", "follow", "slurm", *self.feed_options(), *given],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def stop_feed(self) -> None:
        if self.feed_process is not None and self.feed_process.poll() is None:
            self.feed_process.terminate()
            self.feed_process.wait(20)

    def asked_seconds(self) -> float:
        """Until when the ledger has heard of Slurm's accounting; 0 for never."""
        assert self.ledger is not None
        try:
            text = self.client.get(f"{self.ledger.url}/metrics").text
        except httpx.HTTPError:
            return 0.0
        match = re.search(
            r"^lockstep_ledger_feed_asked_timestamp_seconds\S* (\S+)", text, re.MULTILINE
        )
        return float(match[1]) if match else 0.0

    def pages(self, node: str, job_id: str) -> Iterator[Path]:
        try:
            holder = (self.folder / f"{node}.pid").read_text(encoding="ascii").strip()
            children = Path(f"/proc/{holder}/task/{holder}/children").read_text(encoding="ascii")
            root = Path(f"/proc/{children.split()[0]}/root")
        except (OSError, IndexError):
            return
        for parent in ("run/lockstep", "dev/shm/lockstep"):
            yield from (root / parent / "jobs" / job_id).glob("*/*.page")

    def reset(self, verbs: frozenset[str]) -> None:
        """After a situation that had the lab to itself: everything runs, and nothing is drained."""
        self.run(["bash", "-c", "squeue -h -o %A | xargs -r scancel"], check=False)
        for daemon in DAEMONS:
            if not self.is_alive(daemon):
                self.lab("start", daemon, check=False)
        for node in NODES:
            if "on_node" in verbs:
                self.lab("on", node, "sh", "-c", "while umount /run/lockstep 2>/dev/null; do :; "
                         "done; mount -o remount,hidepid=0 /proc", check=False)  # fmt: skip
            agent = self.agents.get(node)
            if "on_node" in verbs or agent is None or agent.poll() is not None:
                self.restart_agent(node)
        names = ",".join(NODES)
        if re.search("drain|down", self.run(["sinfo", "-h", "-N", "-o", "%T"], check=False).stdout):
            self.run(["scontrol", "update", f"nodename={names}", "state=resume"], check=False)
        if "feed" in verbs or self.feed_process is None or self.feed_process.poll() is not None:
            self.stop_feed()
            self.start_feed(())

    def restart_agent(self, node: str) -> None:
        self.stop_agent(node)
        self.start_agent(node)

    def is_alive(self, daemon: str) -> bool:
        try:
            pid = (self.folder / f"{daemon}.pid").read_text(encoding="ascii").strip()
        except OSError:
            return False
        return Path(f"/proc/{pid}").exists()
