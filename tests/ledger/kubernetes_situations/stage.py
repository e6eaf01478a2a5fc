"""The stage of situations: a lab, a ledger and its feeds, each a process of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from servers import free_port, wait_until

from lockstep_catalogue import feeds

from .manifests import Manifest

REPOSITORY = Path(__file__).parents[3]
LAB = REPOSITORY / "tests/labs/kubernetes-lab/lab.py"
CLUSTER = "east"
ACCOUNT = "lockstep-ledger-feed"
HOME = "lockstep"
TRAINIUM = {"apiGroups": ["example.com"], "resources": ["trainiums"], "verbs": ["list", "watch"]}
TOKENS = {
    "readers": "reader-token-of-the-tests scope=reader\n",
    "writers": "feed-token-of-the-tests scope=scheduler\n"
    "launcher-token-of-tests scope=launcher owner=1042\n",
    "feed": "feed-token-of-the-tests\n",
}
_START_SECONDS = 60.0
_SNAPSHOT_SECONDS = 0.3


def run_lab(*arguments: str) -> None:
    subprocess.run([sys.executable, str(LAB), *arguments], check=True, timeout=180)


def open_client(kubeconfig: Path) -> httpx.Client:
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return httpx.Client(
        base_url=cluster["server"],
        headers={"Authorization": f"Bearer {user['token']}"},
        verify=False,  # noqa: S501  # loopback, and the certificate is made anew for each lab
        timeout=15,
    )


@dataclass
class Program:
    """A process that can be stopped, killed and started again; its log goes on."""

    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, before: tuple[str, ...] = ()) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*before, *self.command], stdout=log, stderr=log)

    def end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


@dataclass
class Stage:
    """Everything that situations need.

    Attributes:
        work_name: folder of its ledger and feeds in that of the lab; those of another name than
            the first have an account and a Lease of their own, by the shipped rules.
        offsets: how far ahead the clock of a feed is, by its name.
    """

    folder: Path
    work_name: str = HOME
    offsets: dict[str, float] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    _reading: threading.Lock = field(default_factory=threading.Lock)
    _snapshot: tuple[float, list[dict[str, Any]]] = (0.0, [])

    @property
    def account(self) -> str:
        """Name of the feeds' account and of all that it may."""
        return ACCOUNT if self.work_name == HOME else f"{ACCOUNT}-{self.work_name}"

    def open(self) -> "Stage":
        """Start ledger and feed on a lab that runs."""
        self.client = open_client(self.folder / "kubeconfig")
        self.reader = httpx.Client(
            headers={"Authorization": "Bearer reader-token-of-the-tests"}, timeout=10
        )
        self.grant(self.read_rules())
        self.token_number, self.token_file = 0, self.folder / f"feed-token-{self.work_name}"
        self.renew_token()
        self.ledger_port, self.work = free_port(), self.folder / self.work_name
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        for name, text in TOKENS.items():
            (self.work / name).write_text(text)
        self._write_kubeconfig()
        self.programs["ledger"] = Program(self._describe_ledger(), self.work / "ledger.log")
        for name in ("feed", "feed-2"):
            command = self._describe_feed(name)
            self.programs[name] = Program(command, self.work / f"{name}.log")
        self.start("ledger")
        self.start("feed")
        return self

    def _describe_ledger(self) -> list[str]:
        options = {
            "--store": self.work / "ledger.db", "--cluster": CLUSTER,
            "--listen": f"127.0.0.1:{self.ledger_port}", "--max-rate": 1000,
            "--requeue-wait": "1s", "--node-wait": "1s",
            "--writer-tokens": self.work / "writers", "--reader-tokens": self.work / "readers",
        }  # fmt: skip
        serve = [sys.executable, "-m", "lockstep_cli.main", "ledger", "serve"]
        return [*serve, *(str(word) for pair in options.items() for word in pair)]

    def _describe_feed(self, name: str) -> list[str]:
        options = {
            "--url": self.url, "--cluster": CLUSTER, "--identity": name,
            "--token-file": self.work / "feed", "--reader-token-file": self.work / "readers",
            "--kubeconfig": self.work / "kubeconfig",
            "--lease": f"{HOME}/{self.account}",
        }  # fmt: skip
        words = (str(word) for pair in options.items() for word in pair)
        return ["ledger", "follow", "kubernetes", *words]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ledger_port}"

    def read_rules(self) -> list[Manifest]:
        """The rules of the shipped Role, and one for the kind that only the lab has."""
        text = (REPOSITORY / "deploy/kubernetes/base/feed.yaml").read_text(encoding="utf-8")
        text = text.replace(ACCOUNT, self.account)
        self.shipped = [each for each in yaml.safe_load_all(text) if each["kind"] != "Deployment"]
        role = next(each for each in self.shipped if each["kind"] == "ClusterRole")
        return [*role["rules"], TRAINIUM]

    def grant(self, rules: list[Manifest]) -> None:
        """Create the shipped account with these rules, or change them."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}}
        for each in (namespace, *self.shipped):
            group, kind = each["apiVersion"], each["kind"]
            body = each | ({"rules": rules} if kind == "ClusterRole" else {})
            base = f"/api/{group}" if "/" not in group else f"/apis/{group}"
            where = each["metadata"].get("namespace")
            plural = kind.lower() + "s"
            path = f"{base}/namespaces/{where}/{plural}" if where else f"{base}/{plural}"
            answer = self.client.post(path, json=body)
            if answer.status_code == 409 and kind == "ClusterRole":
                answer = self.client.put(f"{path}/{each['metadata']['name']}", json=body)
            if answer.status_code not in {200, 201, 409}:
                raise AssertionError(f"{path}: {answer.text}")
        self.rules = rules

    def renew_token(self) -> None:
        """Make a token that ends with a secret of its own."""
        self.token_number += 1
        holder = f"feed-{self.token_number}-{time.monotonic_ns()}"
        base = f"/api/v1/namespaces/{HOME}"
        body: Manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": holder}}
        uid = self.client.post(f"{base}/secrets", json=body).json()["metadata"]["uid"]
        reference = {"kind": "Secret", "apiVersion": "v1", "name": holder, "uid": uid}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                   "spec": {"boundObjectRef": reference, "expirationSeconds": 7200}}  # fmt: skip
        answer = self.client.post(
            f"{base}/serviceaccounts/{self.account}/token", json=request
        ).json()
        self.before, self.holder = getattr(self, "holder", ""), holder
        self.token_file.write_text(answer["status"]["token"])

    def end_token(self, holder: str) -> None:
        self.client.delete(f"/api/v1/namespaces/{HOME}/secrets/{holder}")

    def _write_kubeconfig(self) -> None:
        config = json.loads((self.folder / "kubeconfig").read_text(encoding="utf-8"))
        config["users"] = [{"name": "feed", "user": {"tokenFile": str(self.token_file)}}]
        config["contexts"] = [{"name": "feed", "context": {"cluster": "lab", "user": "feed"}}]
        config["current-context"] = "feed"
        (self.work / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")

    def start(self, name: str, *, is_waited_for: bool = True) -> None:
        """Start ledger or a feed, and wait until it serves."""
        program = self.programs[name]
        if name == "ledger":
            program.start()
            self.until(lambda: self.is_serving(f"{self.url}/ready"), "the ledger serves")
            return
        offset = str(self.offsets.get(name, 0.0))
        position = program.log.stat().st_size if program.log.exists() else 0
        program.start((sys.executable, str(Path(__file__).parent / "offset_clock.py"), offset))
        if is_waited_for:
            self.until(
                lambda: b" follows the cluster " in program.log.read_bytes()[position:],
                f"{name} runs",
            )

    def is_serving(self, url: str) -> bool:
        try:
            return self.reader.get(url, timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def until(
        self, is_so: Any, what: str, seconds: float = _START_SECONDS, *, pause: float = 0.1
    ) -> None:
        wait_until(is_so, seconds, lambda: f"after {seconds:.0f} s not so: {what}", pause=pause)

    def measure(self, family: str) -> float:
        """The sum of a metric that the ledger has of its feed; 0 where it has none."""
        text = self.reader.get(f"{self.url}/metrics").text
        found = re.findall(rf"^{family}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for value in found)

    def wait_until_delivered(self) -> None:
        """Wait until the feed has handed over all that has happened up to now."""
        begin = time.time()
        self.until(
            lambda: self.measure(feeds.ASKED.name) > begin, "the feed has delivered all", pause=0.5
        )

    def jobs(self) -> list[dict[str, Any]]:
        """All records, as they were a moment ago: many wait for some of them at once."""
        with self._reading:
            if time.monotonic() - self._snapshot[0] > _SNAPSHOT_SECONDS:
                self._snapshot = (time.monotonic(), self._read_jobs())
            return self._snapshot[1]

    def _read_jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self.read(f"/api/jobs?limit=500{after}")
            found += page["jobs"]
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"

    def read(self, path: str) -> Any:
        return self.reader.get(f"{self.url}{path}").json()

    def close(self) -> None:
        """End ledger and feeds."""
        self.client.close()
        self.reader.close()
        for name in ("feed", "feed-2", "ledger"):
            if name in self.programs:
                self.programs[name].end(signal.SIGKILL)


def program_is_built(name: str) -> bool:
    cache = os.environ.get("LOCKSTEP_KUBERNETES_LAB", "~/.cache/lockstep-kubernetes-lab")
    return (Path(cache).expanduser() / "bin" / name).exists()


def open_lab(folder: Path) -> None:
    run_lab("up", str(folder), "--nodes", "6", "--gpus", "32", "--kinds")


def close_lab(folder: Path) -> None:
    run_lab("down", str(folder))
