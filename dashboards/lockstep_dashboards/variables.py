"""The variables of the boards."""

from lockstep_catalogue import Series, fabric_ports, gpu, health, ledger, training
from lockstep_catalogue.labels import CLUSTER, DEVICE, GPU, JOB_CLASS, JOB_ID, NODE, QUEUE
from lockstep_catalogue.promql import eq, one_of, select
from lockstep_dashboards.panel import Variable

THIS_CLUSTER = one_of(CLUSTER, "$cluster")
THIS_JOB = eq(JOB_ID, "$job_id")
THIS_NODE = eq(NODE, "$node")
THESE_NODES = one_of(NODE, "$node")
THESE_GPUS = one_of(GPU, "$gpu")
THESE_DEVICES = one_of(DEVICE, "$device")
THESE_QUEUES = one_of(QUEUE, "$queue")
THESE_CLASSES = one_of(JOB_CLASS, "$class")
THESE_LEDGER_CLASSES = one_of(ledger.JOB_CLASS, "$class")


def cluster_variable(series: Series) -> Variable:
    """The clusters of a series that the board cannot do without."""
    return Variable(label=CLUSTER, title="Cluster", source=select(series), several=True)


JOB = Variable(label=JOB_ID, title="Job", source=select(training.RANK_INFO, THIS_CLUSTER))
NODE_OF_AGENT = Variable(label=NODE, title="Node", source=select(health.AGENT_INFO, THIS_CLUSTER))
GPUS_OF_NODE = Variable(
    label=GPU, title="GPU", source=select(gpu.GPU_INFO, THIS_CLUSTER, THIS_NODE), several=True
)
NODES = Variable(
    label=NODE, title="Node", source=select(health.AGENT_INFO, THIS_CLUSTER), several=True
)
DEVICES = Variable(
    label=DEVICE,
    title="Adapter",
    source=select(fabric_ports.PORT_INFO, THIS_CLUSTER, THESE_NODES),
    several=True,
)
QUEUES = Variable(
    label=QUEUE, title="Queue", source=select(ledger.JOBS_STARTED, THIS_CLUSTER), several=True
)
CLASSES_OF_LEDGER = Variable(
    label=ledger.JOB_CLASS,
    title="Class",
    source=select(ledger.JOBS_STARTED, THIS_CLUSTER),
    several=True,
    variable=JOB_CLASS.name,
)
CLASSES_OF_JOBS = Variable(
    label=JOB_CLASS, title="Class", source=select(training.JOB_INFO, THIS_CLUSTER), several=True
)
