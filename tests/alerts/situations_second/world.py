"""A cluster's series by building blocks: jobs of nodes, and what happens to them at which minute.

A world grows by its methods, each of which bends or adds series of ``alerts/situations/fleet``.
Times are minutes from the begin; ``until`` is the end of the situation without a value.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Self

from alerts.situations.fleet import Series, library

DEFAULTS = library()["defaults"]["job"]
PHASES = library()["lists"]["phases"]
STATES = library()["lists"]["goodput"]
GPUS = 8
FOREVER = 100_000.0
COUNTS = "lockstep_train_(steps|tokens|samples|goodput_seconds|phase_seconds|checkpoints)_total"
PAUSE_TIMEOUT = 30.0  # minutes, the agents' own
Minute = float
Jobs = Mapping[str, dict[str, Any]]


class World:
    """Jobs on nodes n1, n2, ... in the order in which they are given, and idle nodes after them."""

    def __init__(
        self, jobs: Jobs | None = None, *, idle: int = 0, kube: bool = True, gpus: int = GPUS
    ) -> None:
        jobs = jobs or {"A": {"count": 2}, "B": {"count": 2}}
        self.jobs: dict[str, dict[str, Any]] = {}
        number = 0
        for name, own in jobs.items():
            nodes = [f"n{number + 1 + each}" for each in range(own["count"])]
            number += own["count"]
            rest = {key: value for key, value in own.items() if key != "count"}
            self.jobs[name] = DEFAULTS | rest | {"nodes": nodes}
        self.gpus = gpus
        self.node_names = [f"n{each + 1}" for each in range(number + idle)]
        self.cluster = {
            "nodes": number + idle, "gpus": gpus, "ports": 1, "kube": kube, "jobs": self.jobs,
        }  # fmt: skip
        self.like = "idle cluster"
        self.events: list[dict[str, str]] = []
        self.series: dict[str, str] = {}
        self.added: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        self.silences: list[float] = []
        self.absences: list[tuple[float, float]] = []
        self.loses_cluster_of_up = self.is_scraped_twice = False

    # What every other method is made of.

    def event(self, name: str, at: Minute = 0, until: Minute = FOREVER, **labels: Any) -> Self:
        self.events.append({"event": name, "from": f"{at:g}m", "to": f"{until:g}m", **labels})
        return self

    def bend(self, selector: str, action: str, at: Minute = 0, until: Minute = FOREVER) -> Self:
        segment = f"{at:g}m-{until:g}m: {action}"
        before = self.series.get(selector)
        self.series[selector] = f"{before}; {segment}" if before else segment
        return self

    def add(
        self, selector: str, action: str = "1", at: Minute = 0, until: Minute = FOREVER
    ) -> Self:
        self.added[selector].append((at, until, action))
        return self

    def again(
        self, verb: str, minutes: Sequence[int], lasts: Minute, *values: Any, **named: Any
    ) -> Self:
        """A method at each of a range of minutes, each time for so long."""
        for at in range(*minutes):
            getattr(self, verb)(*values, at, at + lasts, **named)
        return self

    def silence(self, at: Minute) -> Self:
        """Somebody silences, for good, each alert that fires at that minute."""
        self.silences.append(at)
        return self

    def situation(self, name: str, hours: float) -> dict[str, Any]:
        """The mapping that ``fleet.build`` takes; the ledger counts the jobs that are there."""
        series = dict(self.series)
        if self.absences:
            series = {'lockstep_ledger_jobs{job_status="running"}': self._running()} | series
        return {
            "name": name,
            "fleet": {"like": self.like, "cluster": self.cluster},
            "events": self.events,
            "series": series,
            "adds": {key: _timeline(parts) for key, parts in self.added.items()},
            "at": [{"time": f"0-{hours:g}h"}],
        }

    def _running(self) -> str:
        edges = sorted({0.0, FOREVER, *(edge for absence in self.absences for edge in absence)})
        away = [sum(at <= begin < until for at, until in self.absences) for begin in edges[:-1]]
        spans = zip(edges, edges[1:], away, strict=False)
        return "; ".join(
            f"{begin:g}m-{end:g}m: {len(self.jobs) - gone}" for begin, end, gone in spans
        )

    def scraped(self, series: list[Series]) -> list[Series]:
        """The series as this Prometheus has them: ``up`` without a cluster, two scrape jobs."""
        ups = [each for each in series if each.labels["__name__"] == "up"]
        for each in ups if self.loses_cluster_of_up else ():
            each.labels.pop("cluster", None)
        pods = {"job": "pods", "instance": "10.0.0.1:9440"}
        twins = series if self.is_scraped_twice else []
        return series + [
            Series(each.labels | pods, each.timeline, each.bends)
            for each in twins if each.labels.get("job") == "lockstep-agent"
        ]  # fmt: skip

    # Ways in which it is scraped.

    def up_without_cluster(self) -> Self:
        self.loses_cluster_of_up = True
        return self

    def scraped_twice(self) -> Self:
        self.is_scraped_twice = True
        return self

    def twins(self) -> Self:
        """Two clusters in one store, with equal names of nodes and jobs."""
        self.like = "twin clusters"
        return self

    def restored(self, at: Minute) -> Self:
        """A backup comes back: counters of ledger and jobs are those of days ago."""
        self.bend('{__name__=~"lockstep_ledger_.*_total"}', "0 again", at)
        return self.bend(f'{{__name__=~"{COUNTS}"}}', "0 again", at)

    # What a job does.

    def stands(self, name: str, *when: Minute, cluster: str = ".*") -> Self:
        return self.event("job stands", *when, job=name, cluster=cluster)

    def hang(
        self, name: str, at: Minute, until: Minute = FOREVER, *,
        timeout: Minute = 10, cluster: str = ".*",
    ) -> Self:  # fmt: skip
        """No rank steps; after the time-out the agents count hung ranks and name whom they await."""
        self.stands(name, at, until, cluster=cluster)
        seen = at + max(timeout, 20 * self.jobs[name]["step"] / 60)
        if seen < until:
            self._hung(name, "backward", at, seen, until, cluster=cluster)
        return self

    def _hung(
        self, name: str, phase: str, at: Minute, seen: Minute, until: Minute, *, cluster: str = ".*"
    ) -> Self:
        own = f'job_id="{name}",cluster=~"{cluster}"'
        self.bend(f"lockstep_train_hung_ranks{{{own}}}", f"{self.gpus}", seen, until)
        if cluster != ".*":
            return self
        node = self.jobs[name]["nodes"][0]
        labels = f'node="{node}",job_id="{name}",rank="1",hang_phase="{phase}"'
        self.add(f"lockstep_train_hang_first_seconds{{{labels}}}", f"now - {at:g}m", seen, until)
        return self.add(f"lockstep_train_hang_missing_info{{{labels}}}", "1", seen, until)

    def pause(self, name: str, state: str, at: Minute, until: Minute = FOREVER) -> Self:
        """Evaluation, checkpoint, start-up or restore: ranks are in a state, then have its time.

        One that ends is as long as its owner allows; one that does not is a hang for the agents.
        """
        if until == FOREVER:
            self._hung(name, state, at, at + PAUSE_TIMEOUT, until)
        self.stands(name, at, until)
        ranks = {"state": state, "local_ranks": str(self.gpus)}
        self.event("ranks are in state", at, until, job=name, **ranks)
        self._hold_checkpoint(name, at, until)
        if until < FOREVER:
            goodput = {"eval": "evaluation", "init": "startup"}.get(state, state)
            spent = f"+{(until - at) * 60 * self.gpus:g} every 60s"
            self.counts(
                f'goodput_seconds_total{{goodput="{goodput}"', name, spent, until, until + 1
            )
        return self

    def away(self, name: str, at: Minute, until: Minute = FOREVER, *, ended: bool = False) -> Self:
        """The job is not there: queued, preempted, or over; what begins again is a next attempt."""
        self.event("job is away", at, until, job=name)
        self.stands(name, at, until)
        self._hold_checkpoint(name, at, until)
        self.absences.append((at, until))
        node = self.jobs[name]["nodes"][0]
        for state, ranks in {"training": 0, "done": self.gpus}.items() if ended else ():
            self.counts(f'ranks{{node="{node}",state="{state}"', name, f"{ranks}", at - 1, at)
        return self

    def requeue(
        self, name: str, at: Minute, until: Minute, attempt: int = 1, *, back: int = 0
    ) -> Self:
        """The job is away and goes on as another attempt, at the step of its checkpoint."""
        self.away(name, at, until).counts("attempt", name, str(attempt), until)
        return self.counts("step", name, f"{back} again", until) if back else self

    def restarts(
        self, name: str, at: Minute, until: Minute, every: Minute, pause: Minute = 3
    ) -> Self:
        """Again and again from the same checkpoint: attempts, and rework instead of progress."""
        attempt, begin, job = 0, at, self.jobs[name]
        while begin < until:
            attempt += 1
            self.requeue(name, begin, begin + pause, attempt, back=job["done_steps"])
            begin += every
        rework = f"+{0.83 * job['step'] * self.gpus:g} every {job['step']}s"
        for state, action in {"productive": "+0 every 60s", "rework": rework}.items():
            self.counts(f'goodput_seconds_total{{goodput="{state}"', name, action, at, until)
        return self.no_checkpoints(name, at)

    def slow(
        self, name: str, factor: float, at: Minute, until: Minute = FOREVER, *,
        phase: str = "sync", rank: str | None = None,
    ) -> Self:  # fmt: skip
        """Steps take ``factor`` times as long, in a phase of all ranks or in ``rank``'s backward."""
        own = self.jobs[name]
        step, ranks = own["step"], self.gpus
        period, extra = step * factor, step * (factor - 1)

        def grow(metric: str, amount: float) -> None:
            self.counts(metric, name, f"+{amount:.6g} every {period:g}s", at, until)

        for metric, amount in {
            "steps_total": 1, "step": 1, "tokens_total": 8192 * ranks, "samples_total": ranks,
            "step_seconds_sum": period * ranks, "step_seconds_count": ranks,
            "collective_seconds_total": (0.1 * step + extra) * ranks,
            "collectives_total": ranks, "collective_bus_bytes_total": 2e9,
        }.items():  # fmt: skip
            grow(metric, amount)
        for edge in library()["lists"]["step_buckets"]:
            grow(f'step_seconds_bucket{{le="{edge}"', ranks * (float(edge) >= period))
        for each, share in PHASES.items():
            grow(f'phase_seconds_total{{phase="{each}"', share * step + extra * (each == phase))
        if rank is not None:
            for each in ("sync", "backward"):
                own_seconds = PHASES[each] * step + extra * (each == "backward")
                grow(f'phase_seconds_total{{phase="{each}",rank=~"{rank}"', own_seconds)
        state = {"data": "data_wait", "sync": "communication"}.get(phase, "productive")
        for each, share in STATES.items():
            seconds = (share * step + extra * (each == state)) * ranks
            grow(f'goodput_seconds_total{{goodput="{each}"', seconds)
        if phase == "sync" and rank is None:
            rate = f"{1e11 * 0.1 * step / (0.1 * step + extra):g}"
            self.counts("collective_bus_bytes_per_second", name, rate, at, until)
        return self

    def slow_all(self, factor: float, *when: Minute, phase: str) -> Self:
        for name in self.jobs:
            self.slow(name, factor, *when, phase=phase)
        return self

    def straggler(self, name: str, *when: Minute, rank: str = "3", factor: float = 1.6) -> Self:
        return self.slow(name, factor, *when, rank=rank)

    def no_checkpoints(
        self, name: str, at: Minute, until: Minute = FOREVER, outcome: str = ""
    ) -> Self:
        """None becomes durable; with an outcome they are tried and end so."""
        self.counts("last_durable_checkpoint_timestamp_seconds", name, "held", at, until)
        self.counts('checkpoints_total{outcome="ok"', name, "held", at, until)
        if outcome:
            every = f"+1 every {self.jobs[name]['checkpoint']}s"
            self.counts(f'checkpoints_total{{outcome="{outcome}"', name, every, at, until)
        return self

    def _hold_checkpoint(self, name: str, at: Minute, until: Minute) -> None:
        """None is written in a pause, and the next one not at once."""
        self.no_checkpoints(name, at, min(until + 10, FOREVER))

    def never_checkpoints(self, name: str) -> Self:
        return self.bend(
            f'{{__name__=~"lockstep_train_(checkpoint|last_durable).*",job_id="{name}"}}', "absent"
        )

    def counts(self, metric: str, name: str, action: str, *when: Minute) -> Self:
        """A metric of the job, with further matchers behind a brace after its name."""
        text, _, more = metric.partition("{")
        own = f'job_id="{name}"{"," + more if more else ""}'
        return self.bend(f"lockstep_train_{text}{{{own}}}", action, *when)

    # What nodes and their parts do.

    def lost(self, node: str, *when: Minute, cluster: str = ".*") -> Self:
        return self.event("node dies", *when, node=node, cluster=cluster)

    def gpu(
        self, node: str, reason: str, *when: Minute, verdict: str = "degraded", gpu: int = 0
    ) -> Self:
        own = f'node="{node}",gpu="{gpu}"'
        self.bend(f'lockstep_gpu_health_info{{{own},verdict="ok"}}', "absent", *when)
        labels = f'{own},uuid="GPU-{node}-{gpu}",verdict="{verdict}",gpu_reason="{reason}"'
        self.add(f"lockstep_gpu_health_info{{{labels}}}", "1", *when)
        return self._node_is(node, verdict, f"gpu_{verdict}", *when)

    def _node_is(self, node: str, verdict: str, reason: str, *when: Minute) -> Self:
        self.bend(f'lockstep_host_health_info{{node="{node}",verdict="ok"}}', "absent", *when)
        labels = f'node="{node}",verdict="{verdict}",node_reason="{reason}"'
        return self.add(f"lockstep_host_health_info{{{labels}}}", "1", *when)

    def throttled(
        self, node: str, throttle: str, at: Minute = 0, until: Minute = FOREVER, *,
        reason: str = "thermal",
    ) -> Self:  # fmt: skip
        """All GPUs of a node (or of those that match) are held back."""
        names = [each for each in self.node_names if each in node.split("|")]
        for name, gpu in product(names, range(self.gpus)):
            self.gpu(name, reason, at, until, gpu=gpu)
            labels = f'node="{name}",gpu="{gpu}",uuid="GPU-{name}-{gpu}",throttle="{throttle}"'
            seconds = f"lockstep_gpu_throttle_seconds_total{{{labels}}}"
            if throttle == "sw_power_cap":
                self.bend(seconds, "+0.9 every 1s", at, until)
            else:
                hot = (at, until, "3 +0.9 every 1s")
                self.added[seconds] = [(0, at, "3"), hot, (until, FOREVER, "held")]
        return self

    def port(self, node: str, reason: str, *when: Minute, verdict: str = "failed") -> Self:
        """The agent's verdict on the node's port mlx5_0; one that is down is not up."""
        own = f'node="{node}",device="mlx5_0"'
        if reason == "down":
            self.bend(f"lockstep_fabric_port_up{{{own}}}", "0", *when)
        if reason == "rate":
            self.bend(f"lockstep_fabric_port_rate_bytes_per_second{{{own}}}", "2.5e10", *when)
        self.bend(f'lockstep_fabric_port_health_info{{{own},verdict="ok"}}', "absent", *when)
        labels = f'{own},port="1",verdict="{verdict}",port_reason="{reason}"'
        self.add(f"lockstep_fabric_port_health_info{{{labels}}}", "1", *when)
        return self._node_is(node, verdict, f"port_{verdict}", *when)

    def xid(
        self, node: str, xid: int, severity: str, at: Minute, *, kind: str = "hardware"
    ) -> Self:
        """The driver reports a fault of the node's first GPU."""
        number = f'node="{node}",pci_bus_id="0000:1a:00.0",mig="",xid="{xid}"'
        counted = [(0.0, at, "0"), (at, FOREVER, "1")]
        self.added[f"lockstep_gpu_xid_incidents_total{{{number}}}"] = counted
        self.add(f"lockstep_gpu_xid_last_timestamp_seconds{{{number}}}", f"{at * 60:g}", at)
        labels = f'node="{node}",xid="{xid}",xid_class="{kind}",xid_severity="{severity}",remedy="reset_gpu"'
        return self.add(f"lockstep_gpu_xid_info{{{labels}}}", "1", at)

    def filer(self, seconds: float, *when: Minute, node: str = ".*") -> Self:
        """The file server answers so late; a request waits and tasks with it."""
        for operation, requests in {"read": 20, "write": 5}.items():
            own = f'node=~"{node}",operation="{operation}"'
            action = f"+{requests * seconds:g} every 1s"
            self.bend(f"lockstep_host_storage_request_seconds_total{{{own}}}", action, *when)
        own = f'node=~"{node}",resource="io"'
        return self.bend(f"lockstep_host_pressure_seconds_total{{{own}}}", "+0.5 every 1s", *when)

    def notebook(self, node: str, gpus: int) -> Self:
        """GPUs that belong to somebody who sits there, or has gone home."""
        owner = 'job_id="4711",rank="",slurm_job="4711",slurm_step="",namespace="",pod="",container="",claim=""'
        for gpu in range(gpus):
            pci = (
                f'gpu="{gpu}",uuid="GPU-{node}-{gpu}",pci_bus_id="0000:{gpu + 1}a:00.0",mig_uuid=""'
            )
            self.add(f'lockstep_gpu_owner_info{{node="{node}",{pci},{owner}}}')
        return self

    def model(self, node: str, model: str) -> Self:
        """The node's GPUs are of another model."""
        self.bend(f'lockstep_gpu_info{{node="{node}"}}', "absent")
        for gpu in range(self.gpus):
            own = f'node="{node}",gpu="{gpu}",uuid="GPU-{node}-{gpu}",model="{model}"'
            more = f'architecture="ampere",pci_bus_id="0000:{gpu + 1}a:00.0",minor="{gpu}",serial="",vbios=""'
            self.add(f"lockstep_gpu_info{{{own},{more}}}")
        return self

    def nodes(self) -> list[str]:
        return self.node_names


def _timeline(parts: list[tuple[float, float, str]]) -> str:
    """What an added series does in its parts; it is absent between them."""
    found, last = [], 0.0
    for at, until, action in parts:
        if at > last:
            found.append(f"{last:g}m-{at:g}m: absent")
        if until > at:
            found.append(f"{at:g}m-{until:g}m: {action}")
        last = until
    if last < FOREVER:
        found.append("then absent")
    return "; ".join(found)
