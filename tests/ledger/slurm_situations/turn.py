"""A situation's turn in a lab: its actions on Slurm, and the ids that its jobs got."""

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from servers import free_port, wait_until

from .lab import GPU_MAP, NODES, TRAIN, Lab
from .scenario import Situation

_WAIT_SECONDS = 300.0
_DONE = ("", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "DEADLINE")
_WAITING = ("PENDING", "REQUEUE_HOLD", "REQUEUED", "SPECIAL_EXIT", "CONFIGURING")
_JOB_ID = re.compile(r"jobid (\d+)")


def _wait(is_done: Callable[[], bool], what: str, pause: float = 0.3) -> None:
    wait_until(is_done, _WAIT_SECONDS, lambda: f"{what} took {_WAIT_SECONDS:.0f} s", pause=pause)


@dataclass
class Turn:
    """A situation's turn in a lab: performs its actions, and knows the ids of its jobs."""

    lab: Lab
    name: str
    ids: dict[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    outputs: dict[str, list[str]] = field(default_factory=dict)
    port: int = 0
    seen_pages: set[Path] = field(default_factory=set)

    def perform(self, situation: Situation) -> str:
        """Runs the script; gives what stopped it."""
        try:
            for action in situation.script:
                getattr(self, action.verb)(*action.arguments)
        except Exception as error:  # noqa: BLE001  # one situation must not end the others
            return f"{type(error).__name__}: {error}"
        return ""

    def text(self, template: str) -> str:
        """The template with what stands for its names."""
        if "{port}" in template and not self.port:
            self.port = free_port()
        stem = re.sub(r"\W", "-", self.name)
        values = {
            **self.ids, "train": f"{sys.executable} {TRAIN}", "script": str(TRAIN),
            "lockstep": str(self.lab.lockstep), "deploy": str(self.lab.deploy),
            "n1": NODES["n1"], "n2": NODES["n2"], "port": str(self.port),
            "out": str(self.lab.folder / "out" / stem),
            "gpu_map": GPU_MAP,
            "logind_clean_ipc": f"{sys.executable} {Path(__file__).with_name('clean_ipc.py')}",
        }  # fmt: skip
        for name, value in values.items():
            template = template.replace("{" + name + "}", value)
        return template

    def submit(self, job: str, body: str, *options: str) -> None:
        """Pass a batch script to sbatch; ``--requeue`` and the like stand in the options."""
        path = self.lab.folder / "jobs" / f"{re.sub(chr(92) + 'W', '-', self.name)}-{job}.sh"
        script = self.text(body)
        if any(option.startswith("--uid") for option in options):
            # The interpreter of the tests may lie in a home that no other user may enter.
            script = script.replace(sys.executable, "/usr/bin/python3")
        path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        output = ["-o", str(self.lab.folder / "out" / "%A-%a.out")]
        given = [self.text(option) for option in options]
        done = self.lab.run(["sbatch", "--parsable", *output, *given, str(path)])
        self.ids[job] = done.stdout.strip().splitlines()[-1].partition(";")[0]

    def srun(self, job: str, body: str, *options: str) -> None:
        """Start srun from outside an allocation, in the background; its job gets the name."""
        given = [self.text(option) for option in options]
        log = self.lab.folder / "log" / f"srun-{re.sub(chr(92) + 'W', '-', self.name)}-{job}.log"
        with log.open("wb") as file:
            self.processes[job] = subprocess.Popen(
                ["srun", "-v", *given, *shlex.split(self.text(body))], env=self.lab.environment,
                cwd=self.lab.folder / "out", stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

        def is_known() -> bool:
            match = _JOB_ID.search(log.read_text(errors="replace"))
            if match:
                self.ids[job] = match[1]
            return match is not None

        _wait(is_known, f"srun of {self.name}")

    def interrupt(self, job: str) -> None:
        """Send the background srun what Ctrl-C twice sends."""
        for _ in range(2):
            self.processes[job].send_signal(signal.SIGINT)
            time.sleep(0.2)

    def wait(self, job: str, state: str = "END") -> None:
        """Wait until squeue or sacct says the state; ``END`` is any state after the last run."""
        name, _, task = job.partition("_")
        job_id = self.ids[name] + (f"_{task}" if task else "")
        chosen = {"END": _DONE, "PENDING": _WAITING}.get(state, (state,))

        def is_there() -> bool:
            states = self.states(job_id)
            if states is None:
                return False
            if state == "END":
                return all(each in _DONE for each in states)
            return any(each in chosen for each in states)

        _wait(is_there, f"{job} {state} in {self.name}")
        if state == "RUNNING":  # slurmctld tells slurmdbd a little later
            command = ["sacct", "-n", "-X", "-o", "State", "-j", job_id]
            _wait(lambda: state in self.lab.run(command, check=False).stdout,
                       f"{job} {state} in accounting")  # fmt: skip
        if state == "END" and job in self.processes:
            self.processes[job].wait(_WAIT_SECONDS)

    def watch(self, job: str) -> None:
        """Wait until a rank of a job trains: there is a page that was not there before."""
        name, _, task = job.partition("_")
        job_id = self.ids[name] + (f"_{task}" if task else "")

        def is_there() -> bool:
            found = {page for node in NODES for page in self.lab.pages(node, job_id)}
            is_new = bool(found - self.seen_pages)
            self.seen_pages |= found
            return is_new

        _wait(is_there, f"a page of {job} in {self.name}")
        time.sleep(1.0)  # for some steps

    def states(self, job_id: str) -> list[str] | None:
        """States of a job, its tasks and components in the queue; None without an answer."""
        try:
            done = self.lab.run(["squeue", "-h", "-t", "all", "-o", "%T", "-j", job_id],
                                check=False, timeout=30)  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        if done.returncode and "Invalid job id" not in done.stdout:
            return None
        return [] if done.returncode else done.stdout.split()

    def slurm(self, command: str) -> None:
        done = self.lab.run(["bash", "-c", self.text(command)], check=False)
        # A node that was set down may be up again before somebody resumes it.
        if done.returncode and "Invalid node state" not in done.stdout:
            raise RuntimeError(f"{command}: {done.stdout[-300:]}")

    def stop(self, daemon: str) -> None:
        daemon = self.text(daemon)
        if daemon == "feed":
            self.lab.stop_feed()
        elif daemon == "ledger":
            assert self.lab.ledger is not None
            self.lab.ledger.stop()
        else:
            self.lab.lab("stop", daemon)

    def start(self, daemon: str) -> None:
        daemon = self.text(daemon)
        if daemon == "feed":
            self.lab.start_feed(())
        elif daemon == "ledger":
            assert self.lab.ledger is not None
            self.lab.ledger.start()
        else:
            self.lab.lab("start", daemon)
            if daemon.startswith("slurmd@"):
                node = daemon.partition("@")[2]
                if self.lab.agents.get(node) is None or self.lab.agents[node].poll() is not None:
                    self.lab.restart_agent(node)

    def crash(self, node: str) -> None:
        self.lab.lab("crash", self.text(node))

    def on_node(self, node: str, command: str) -> None:
        done = self.lab.lab("on", self.text(node), "sh", "-c", self.text(command), check=False)
        if "rm -rf /run/lockstep" in command or "tmpfiles" in command:
            self.lab.restart_agent(self.text(node)) if "rm " not in command else None
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout[-300:]}")

    def feed(self, *options: str) -> None:
        """Start the feed anew with options; ``TZ=ZONE`` sets its zone."""
        self.lab.stop_feed()
        self.lab.start_feed(tuple(self.text(option) for option in options))

    def poll(self) -> None:
        """Wait until the feed has asked sacct once more, and the ledger has answered."""
        begin = time.time()
        _wait(lambda: self.lab.asked_seconds() > begin, f"a poll in {self.name}", 1.0)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)
