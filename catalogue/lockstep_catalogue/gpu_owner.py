"""The owner of each GPU and port: an info series each, to be joined to every other by its name."""

from lockstep_catalogue.labels import DEVICE, JOB_ID, MIG_UUID, OF_GPU, PCI_BUS_ID, RANK
from lockstep_catalogue.metric import Label, Metric

SLURM_JOB = Label(name="slurm_job", help="id of the Slurm job")
SLURM_STEP = Label(name="slurm_step", help="step of the Slurm job")
NAMESPACE = Label(name="namespace", help="namespace of the pod")
POD = Label(name="pod", help="name of the pod")
CONTAINER = Label(name="container", help="name of the container in the pod")
CLAIM = Label(name="claim", help="name of the resource claim, empty for a device of a plugin")

GPU_OWNER_INFO = Metric(
    name="lockstep_gpu_owner_info",
    labels=(
        *OF_GPU,
        PCI_BUS_ID,
        MIG_UUID,
        JOB_ID,
        RANK,
        SLURM_JOB,
        SLURM_STEP,
        NAMESPACE,
        POD,
        CONTAINER,
        CLAIM,
    ),
    help="Owner of the GPU, always 1; where several share it, their names are a list.",
    source="rank pages, kubelet pod-resources, processes of the GPU, files of a Slurm prolog",
)

PORT_OWNER_INFO = Metric(
    name="lockstep_fabric_port_owner_info",
    labels=(DEVICE, JOB_ID, RANK, SLURM_JOB, NAMESPACE, POD),
    help="Owners of the GPUs that this adapter is nearest to, always 1; several are a list.",
    source="owners of GPUs, and common bridges in /sys/bus/pci/devices",
)
