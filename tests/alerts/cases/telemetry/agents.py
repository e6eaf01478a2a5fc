from lockstep_alerts.conditions.telemetry.agents import AgentDown, AgentsDown, ClockOff
from lockstep_catalogue import agent, foreign

from ..case import Case, proves
from ..synthetic import (
    Samples,
    Stretch,
    Timing,
    growing,
    sample_node,
    samples,
    steady,
)


@proves(AgentDown)
def agent_down(condition: AgentDown, timing: Timing) -> list[Case]:
    named = {"cluster": "c1", "node": "n0"}
    drained = samples(foreign.KUBE_CORDONED, timing.steady(1), **named)
    never = {"cluster": "c1", "instance": "n7:9440", "job": "lockstep-agent"}
    return [
        Case("an agent is silent", _agents(timing, 4, 1), named),
        Case("an agent stands", _agents(timing, 4, 1, is_stuck=True), named),
        Case(
            "an agent never answered",
            [samples(foreign.UP, timing.steady(0), **never)],
            {"cluster": "c1", "instance": "n7:9440"},
        ),
        Case(
            "no agent serves a node of the targets",
            [*_agents(timing, 4, 0), *_renamed(timing, own="n9"), *_of_kubernetes(timing, "n9")],
            {"cluster": "c1", "node": "n8"},
        ),
        Case(
            "an agent is of a node that no inventory has",
            [*_agents(timing, 4, 0), *_of_kubernetes(timing, "n0"), *_renamed(timing, "n3", "n9")],
            {"cluster": "c1", "node": "n9"},
        ),
        Case("the node is drained", [*_agents(timing, 4, 1), drained]),
        Case("all answer", _agents(timing, 4, 0)),
    ]


@proves(AgentsDown)
def agents_down(condition: AgentsDown, timing: Timing) -> list[Case]:
    num_agents = 20 + 10 * condition.least_agents
    num_silent = int(num_agents * condition.above_ratio) + 1
    cluster = {"cluster": "c1"}
    return [
        Case("agents are silent", _agents(timing, num_agents, num_silent), cluster),
        Case("agents stand", _agents(timing, num_agents, num_silent, is_stuck=True), cluster),
        Case("fewer agents are silent", _agents(timing, num_agents, num_silent - 1)),
        Case("all agents answer", _agents(timing, num_agents, 0)),
    ]


def _renamed(timing: Timing, target: str = "n8", own: str = "") -> list[Samples]:
    """A target with the name of one node whose agent says that it is of another."""
    labels = {"instance": "n8:9400", "cluster": "c1"}
    tick = growing(Stretch(timing.fires_by_seconds, 1))
    return [
        samples(foreign.UP, timing.steady(1), **labels, node=target, job="lockstep-agent"),
        samples(agent.AGENT_INFO, timing.steady(1), **labels, node=own, version="1"),
        samples(agent.AGENT_TICK, tick, **labels, node=own),
    ]


def _of_kubernetes(timing: Timing, *nodes: str) -> list[Samples]:
    return [samples(foreign.KUBE_NODE, timing.steady(1), cluster="c1", node=n) for n in nodes]


def _agents(
    timing: Timing, num_agents: int, num_silent: int, is_stuck: bool = False
) -> list[Samples]:
    """Agents of a cluster, of which some fall silent or stand at the onset."""
    onset, lasting = timing.onset_seconds, timing.fires_by_seconds
    series = []
    for number in range(num_agents):
        fails = number < num_silent
        seconds = onset if fails and not is_stuck else lasting
        moving = (Stretch(onset, 1), Stretch(seconds - onset, 0 if fails else 1))
        node = f"n{number}"
        up = timing.steps_up(0 if fails and not is_stuck else 1, 1)
        series.append(sample_node(agent.AGENT_INFO, steady(1, seconds), node, version="1"))
        series.append(sample_node(agent.AGENT_TICK, growing(*moving), node))
        series.append(sample_node(foreign.UP, up, node, job="lockstep-agent"))
    return series


@proves(ClockOff)
def clock_off(condition: ClockOff, timing: Timing) -> list[Case]:
    lasting = timing.fires_by_seconds

    def clocks(*offsets: float) -> list[Samples]:
        return [
            sample_node(agent.AGENT_TICK, growing(Stretch(lasting, 1), start=offset), f"n{number}")
            for number, offset in enumerate(offsets)
        ]

    off = 3.0 * condition.above.seconds + 120
    return [
        Case("a clock is off", clocks(off, 0, 0), {"cluster": "c1", "node": "n0"}),
        Case("Prometheus' is off", clocks(off, off, off), {"cluster": "c1"}),
        Case("they agree", clocks(0, 0.1, 0)),
    ]
