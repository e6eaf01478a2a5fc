"""Rows about InfiniBand and RoCE ports: state, traffic, and what is lost."""

from lockstep_catalogue import Label, Metric, Unit, fabric_ports
from lockstep_catalogue.fabric_labels import (
    PACKET_LOSS,
    PORT,
    PORT_ERROR,
    PORT_REASON,
    RETRY,
)
from lockstep_catalogue.labels import (
    CLUSTER,
    DEVICE,
    DIRECTION,
    NODE,
    VERDICT,
)
from lockstep_catalogue.promql import Matcher, one_of
from lockstep_dashboards.colors import BAD, GOOD
from lockstep_dashboards.panel import Panel, Query, Row, ValueText
from lockstep_dashboards.selection import (
    MOST_ROWS,
    NUM_WORST,
    Selection,
    above_zero,
    largest,
    of_largest,
)
from lockstep_dashboards.series_panels import stat, state_timeline, table, time_series
from lockstep_dashboards.variables import THESE_DEVICES, THESE_NODES, THIS_CLUSTER

OF_PORTS = Selection((THIS_CLUSTER, THESE_NODES, THESE_DEVICES), (CLUSTER, NODE, DEVICE, PORT))
OF_ALL = Selection((THIS_CLUSTER, THESE_NODES), ())
OF_DEVICES = Selection(OF_PORTS.matchers, (CLUSTER, NODE, DEVICE))
_PORT = (CLUSTER, NODE, DEVICE, PORT)
_LEGEND = "{{node}} {{device}}"
NO_LOSS = "ports that lost nothing, or whose driver does not count it, have none"
POINTS = 40
"""Of graphs over all ports or volumes of a cluster: each point reads thousands of series."""
NO_INFINIBAND = "a cluster without InfiniBand or RoCE has none"
_BAD = one_of(VERDICT, "degraded", "failed")
_UP_OR_DOWN = (
    ValueText(value=0, text="down", color=BAD),
    ValueText(value=1, text="up", color=GOOD),
)


def worst_rates(metric: Metric, *labels: Label, chosen: Selection = OF_PORTS) -> Query:
    """Rates of the devices on which a counter grew most in the range."""
    grown = chosen.by("sum", f"increase({chosen.of(metric)}[$__range] @ end())")
    return of_largest(
        chosen.by("sum", chosen.rate(metric), *labels),
        grown,
        *chosen.labels,
        legend=" ".join([_LEGEND, *(f"{{{{{label.name}}}}}" for label in labels)]),
        count=NUM_WORST if not labels else NUM_WORST // 2,
    )


def moved(  # a graph of thousands of series would take seconds
    metric: Metric,
    *labels: Label,
    title: str,
    good: str,
    otherwise: str,
    chosen: Selection = OF_PORTS,
    may_be_empty: str = NO_INFINIBAND,
) -> Panel:
    """A table of what a counter has counted in the range, the most first."""
    return table(
        metric,
        largest(chosen.by("sum", chosen.increase(metric), *labels), MOST_ROWS),
        title=title,
        note="Within the range.",
        good=good,
        otherwise=otherwise,
        columns=(*(each for each in chosen.labels if each != CLUSTER), *labels),
        may_be_empty=may_be_empty,
    )


def errors(
    metric: Metric,
    *labels: Label,
    title: str,
    otherwise: str,
    chosen: Selection = OF_PORTS,
    width: int = 8,
) -> Panel:
    """A table of what a counter of errors has counted in the range, the most first."""
    return table(
        metric,
        above_zero(chosen.by("sum", chosen.increase(metric), *labels)),
        title=title,
        note="Within the range.",
        good="empty.",
        otherwise=otherwise,
        columns=(*(each for each in chosen.labels if each != CLUSTER), *labels),
        width=width,
        may_be_empty=NO_LOSS,
    )


def present_ports(metric: Metric, *labels: Label, where: tuple[Matcher, ...] = ()) -> Query:
    """States of ports that hold now."""
    return Query(
        expression=f"topk({MOST_ROWS}, {OF_PORTS.by('max', OF_PORTS.of(metric, *where), *labels)})"
    )


def _link_states() -> Panel:
    """The ports that were down longest in the range."""
    up = OF_PORTS.by("min", OF_PORTS.of(fabric_ports.PORT_UP))
    mean = f"avg_over_time({OF_PORTS.of(fabric_ports.PORT_UP)}[$__range] @ end())"
    least = f"bottomk(25, {OF_PORTS.by('min', mean)})"
    return state_timeline(
        fabric_ports.PORT_UP,
        Query(
            expression=f"{up} and on (cluster, node, device, port) {least}",
            legend="{{node}} {{device}}",
        ),
        title="Link states",
        note="The 25 ports that were up least.",
        good="one blue band a port.",
        otherwise="a band with gaps flaps: change cable or transceiver; all of a node: the node.",
        texts=_UP_OR_DOWN,
        max_points=POINTS,
        width=16,
        height=10,
        may_be_empty=NO_INFINIBAND,
    )


def _share_of_line_rate() -> Panel:
    bytes_rate = OF_DEVICES.by("sum", OF_PORTS.rate(fabric_ports.PORT_BYTES), PORT, DIRECTION)
    line_rate = OF_PORTS.by("max", OF_PORTS.of(fabric_ports.PORT_RATE))
    on_port = "on (cluster, node, device, port)"
    grown = OF_PORTS.by(
        "sum", f"increase({OF_PORTS.of(fabric_ports.PORT_BYTES)}[$__range] @ end())"
    )
    return time_series(
        fabric_ports.PORT_BYTES,
        of_largest(
            f"{bytes_rate} / {on_port} group_left () {line_rate}",
            grown,
            *_PORT,
            legend="{{node}} {{device}} {{direction}}",
        ),
        title="Share of the line rate",
        note="The ports that moved most.",
        good="peaks near 100 % in collectives, and alike on the ports of a job.",
        otherwise="a port that stays behind the others of its rail has errors or a lower rate.",
        unit=Unit.RATIO,
        max_points=POINTS,
        may_be_empty=NO_INFINIBAND,
    )


PORTS = Row(
    title="Ports now",
    panels=(
        stat(
            fabric_ports.PORT_UP,
            Query(
                expression=f"avg ({OF_PORTS.of(fabric_ports.PORT_UP)})", legend="ports that are up"
            ),
            title="Ports that are up",
            good="100 %.",
            otherwise="the timeline beside it names those that are down.",
            unit=Unit.RATIO,
            width=8,
            height=5,
            may_be_empty=NO_INFINIBAND,
        ),
        _link_states(),
        table(
            fabric_ports.PORT_HEALTH,
            present_ports(fabric_ports.PORT_HEALTH, VERDICT, PORT_REASON, where=(_BAD,)),
            title="Ports that are not well",
            good="empty.",
            otherwise="docs/agent.md says what each reason means and what mends it.",
            columns=(NODE, DEVICE, PORT, VERDICT, PORT_REASON),
            width=10,
            may_be_empty=NO_LOSS,
        ),
        table(
            fabric_ports.PORT_RATE,
            Query(
                expression=above_zero(
                    f"1 - {OF_PORTS.by('min', OF_PORTS.of(fabric_ports.PORT_RATE))} / "
                    f"{OF_PORTS.by('max', OF_PORTS.of(fabric_ports.PORT_RATE_EXPECTED))}"
                ).expression
            ),
            title="Missing share of the expected rate",
            good="empty.",
            otherwise="lanes or speed are down: reseat the cable.",
            unit=Unit.RATIO,
            columns=(NODE, DEVICE, PORT),
            width=6,
            may_be_empty=NO_LOSS,
        ),
    ),
)
TRAFFIC = Row(
    title="Traffic and loss",
    panels=(
        _share_of_line_rate(),
        time_series(
            fabric_ports.PORT_WAIT,
            worst_rates(fabric_ports.PORT_WAIT),
            title="Ticks with data that could not be sent",
            note="The ports that waited most.",
            max_points=POINTS,
            per_second=True,
            good="near none outside of collectives.",
            otherwise="many ports: the fabric is congested; one: its peer receives too slowly.",
            may_be_empty=NO_INFINIBAND,
        ),
        errors(
            fabric_ports.PORT_ERRORS,
            PORT_ERROR,
            title="Errors of ports",
            otherwise="symbol errors: cable; link_downed: transceiver or switch.",
        ),
        errors(
            fabric_ports.RDMA_RETRIES_EXCEEDED,
            RETRY,
            title="Connections that broke",
            otherwise="the job of this port fails with a time-out: see its peers too.",
        ),
        errors(
            fabric_ports.RDMA_LOSSES,
            PACKET_LOSS,
            title="Signs of lost packets",
            otherwise="adaptive routing reorders some; a steady growth is loss.",
        ),
    ),
)
