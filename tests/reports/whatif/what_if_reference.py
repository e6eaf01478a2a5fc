"""The what-if formulas written down a second time, operation by operation, for a test.

Plain loops over the rows of one step and replica, no array and nothing of ``lockstep_reports``:
transfers, ideal durations, dependencies, replay and scenarios as Lin et al. (OSDI 2025) state them,
for pipelines of one chunk a stage with a forward-then-backward order of any kind.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

FORWARD, BACKWARD = "forward-compute", "backward-compute"
RESIDUE_SECONDS = 0.01
Worker = tuple[int, int]


@dataclass(frozen=True)
class Op:
    """One operation of one replica in one step."""

    kind: str
    stage: int
    replica: int
    step: int
    order: int
    start: float
    duration: float

    @property
    def end(self) -> float:
        """Seconds of the step's clock."""
        return self.start + self.duration

    @property
    def worker(self) -> Worker:
        """Stage and replica."""
        return self.stage, self.replica


Rule = Callable[[Op], bool]


class Reference:
    """Replays of a trace given as rows of the published columns.

    Args:
        rows: dictionaries with ``optype``, ``stage``, ``dp_rank``, ``step``, ``seq_id``,
            ``start_ts`` and ``duration``.
    """

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.ops = [
            Op(
                row["optype"], row["stage"], row["dp_rank"], row["step"], row["seq_id"],
                float(row["start_ts"]), float(row["duration"]),
            )
            for row in rows
        ]  # fmt: skip
        self.steps = sorted({op.step for op in self.ops})
        self.stages = 1 + max(op.stage for op in self.ops)
        self.replicas = sorted({op.replica for op in self.ops})
        self.by_step: dict[int, list[Op]] = defaultdict(list)
        for op in self.ops:
            self.by_step[op.step].append(op)
        self.group = {
            op: group for step in self.steps for group in self._groups(step) for op in group
        }
        self.recorded = {op: self._recorded(op) for op in self.ops}
        self.ideal = self._ideal()
        self.before: dict[Op, list[Op]] = {op: [] for op in self.ops}
        for step in self.steps:
            self._find_dependencies(step)

    def _groups(self, step: int) -> list[list[Op]]:
        """Operations that can only transfer together."""
        groups: dict[Any, list[Op]] = defaultdict(list)
        for op in self.by_step[step]:
            kind, stage = op.kind, op.stage
            if kind in {"params-all-gather", "grads-reduce-scatter"}:
                groups[kind, stage, op.order].append(op)
            elif kind == "optimizer-clip-main-grad":
                groups[kind, op.order].append(op)
            elif kind.startswith("forward-") and kind != FORWARD:
                sender = stage if kind == "forward-send" else stage - 1
                groups["forward", sender, op.replica, op.order].append(op)
            elif kind.startswith("backward-") and kind != BACKWARD:
                sender = stage if kind == "backward-send" else stage + 1
                groups["backward", sender, op.replica, op.order].append(op)
        return list(groups.values())

    def _recorded(self, op: Op) -> float:
        """Duration of a computation; transfer(op) = end(op) - max(start) of a communication."""
        group = self.group.get(op)
        if group is None:
            return op.duration
        transfer = op.end - max(peer.start for peer in group)
        return 0.0 if transfer <= -RESIDUE_SECONDS else transfer

    def _ideal(self) -> dict[str, float]:
        """Mean of a computation, median of a transfer, over all of a type."""
        values: dict[str, list[float]] = defaultdict(list)
        for op in self.ops:
            values[op.kind].append(self.recorded[op])
        communicates = {op.kind for op in self.group}
        return {k: median(v) if k in communicates else fmean(v) for k, v in values.items()}

    def _find_dependencies(self, step: int) -> None:
        for stage in range(self.stages):
            for replica in self.replicas:
                of_worker = [op for op in self.by_step[step] if op.worker == (stage, replica)]
                self._of_a_worker(sorted(of_worker, key=lambda op: (op.start, op.order, op.kind)))

    def _of_a_worker(self, ops: list[Op]) -> None:
        def of(*kinds: str) -> list[Op]:
            return [op for op in ops if op.kind in kinds]

        computed = of(FORWARD, BACKWARD)
        gathers, scatters = of("params-all-gather"), of("grads-reduce-scatter")
        tail = [max(computed, key=lambda op: op.end), *scatters]
        tail += of("optimizer-clip-main-grad") + of("optimizer")
        self._chain(computed, tail)
        for kind in ("forward-send", "forward-recv", "backward-send", "backward-recv"):
            self._chain(of(kind))
        if len(self.replicas) > 1:  # one replica has nobody to share parameters with
            self._chain(of("params-all-gather", "grads-reduce-scatter"))
            for gather in gathers:
                self.before[of(FORWARD)[0]].append(gather)
        for direction in ("forward", "backward"):
            own = sorted(of(f"{direction}-compute"), key=lambda op: op.order)
            self._transfers(own, of(f"{direction}-send"), of(f"{direction}-recv"))
        # The warm-up: the first backward transfer hangs on the second-last forward before it.
        first = next(i for i, op in enumerate(computed) if op.kind == BACKWARD)
        for op in of("backward-send", "backward-recv") if first > 1 else []:
            if op.order == 0:
                self.before[op].append(computed[first - 2])

    def _chain(self, *streams: list[Op]) -> None:
        for stream in streams:
            for earlier, later in pairwise(stream):
                self.before[later].append(earlier)

    def _transfers(self, own: list[Op], sends: list[Op], receives: list[Op]) -> None:
        for send, computation in zip(sends, own, strict=False):
            self.before[send].append(computation)
        for number, receive in enumerate(receives):
            self.before[own[number]].append(receive)
            # It is posted after the computation before its own.
            if number:
                self.before[receive].append(own[number - 1])

    def step_seconds(self, is_recorded: Rule) -> list[float]:
        """Duration of each step when some operations stay as recorded and all others are ideal."""
        return [self._replay(step, is_recorded) for step in self.steps]

    def _replay(self, step: int, is_recorded: Rule) -> float:
        end: dict[Op, float] = {}
        remaining = list(self.by_step[step])
        while remaining:
            later = []
            for op in remaining:
                group = self.group.get(op, [op])
                if any(earlier not in end for peer in group for earlier in self.before[peer]):
                    later.append(op)
                    continue
                launch = max((end[e] for peer in group for e in self.before[peer]), default=0.0)
                end[op] = launch + (self.recorded[op] if is_recorded(op) else self.ideal[op.kind])
            assert len(later) < len(remaining), "operations wait for each other"
            remaining = later
        return max(seconds for op, seconds in end.items() if op.kind == "optimizer")

    def answers(self) -> dict[str, float | None]:
        """Slowdown, by stage and by replica, M_W and M_S."""
        seconds = fmean(self.step_seconds(lambda _: True))
        ideal = fmean(self.step_seconds(lambda _: False))
        by_stage = {s: self._of_stage(s) / ideal for s in range(self.stages)}
        by_replica = {r: self._of_replica(r) / ideal for r in self.replicas}
        workers = [(stage, replica) for stage in by_stage for replica in by_replica]
        workers.sort(key=lambda w: (-min(by_stage[w[0]], by_replica[w[1]]), w))
        worst = set(workers[: math.ceil(0.03 * len(workers))])
        lost = seconds - ideal
        without_worst = fmean(self.step_seconds(lambda op: op.worker not in worst))
        without_last = fmean(self.step_seconds(lambda op: op.stage != self.stages - 1))
        return {
            "slowdown": seconds / ideal,
            # Without a slowdown nobody has a share of it.
            "m_w": (seconds - without_worst) / lost if lost > 0 else None,
            "m_s": (seconds - without_last) / lost if lost > 0 else None,
            **{f"stage {stage}": value for stage, value in by_stage.items()},
            **{f"replica {replica}": value for replica, value in by_replica.items()},
        }

    def _of_stage(self, stage: int) -> float:
        return fmean(self.step_seconds(lambda op: op.stage == stage))

    def _of_replica(self, replica: int) -> float:
        return fmean(self.step_seconds(lambda op: op.replica == replica))
