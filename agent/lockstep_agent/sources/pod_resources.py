"""Which container has which device, by the kubelet; the only file of the agent that imports grpc.

The messages are the part about devices of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lockstep_records.distribution import install_hint

_METHOD = "/v1.PodResourcesLister/List"
_TIMEOUT_SECONDS = 2.0
_MAX_BYTES = 16 << 20
# by message and field: number, type (a message, or empty for text), whether it repeats
_MESSAGES: dict[str, dict[str, tuple[int, str, bool]]] = {
    "Request": {},
    "Device": {"driver_name": (2, "", False), "device_name": (4, "", False)},
    "Claim": {
        "claim_name": (2, "", False),
        "claim_namespace": (3, "", False),
        "claim_resources": (4, "Device", True),
    },
    "Devices": {"resource_name": (1, "", False), "device_ids": (2, "", True)},
    "Container": {
        "name": (1, "", False),
        "devices": (2, "Devices", True),
        "dynamic_resources": (5, "Claim", True),
    },
    "Pod": {
        "name": (1, "", False),
        "namespace": (2, "", False),
        "containers": (3, "Container", True),
    },
    "Response": {"pod_resources": (1, "Pod", True)},
}


class PodResourcesError(OSError):
    """The kubelet gives no answer; the text gives the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """One device in one container.

    Attributes:
        device: id of the device, as the device plugin or the driver of the claim writes it.
        claim: name of the resource claim; empty for a device of a plugin.
    """

    device: str
    namespace: str
    pod: str
    container: str
    claim: str = ""


@cache
def message_classes() -> dict[str, Any]:
    """The protobuf message classes by name; ImportError where protobuf is not installed."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415  # only on Kubernetes

    file = descriptor_pb2.FileDescriptorProto(
        name="lockstep/podresources.proto", package="lockstep.podresources", syntax="proto3"
    )
    types = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, type_name, is_repeated) in fields.items():
            message.field.add(
                name=field,
                number=number,
                label=types.LABEL_REPEATED if is_repeated else types.LABEL_OPTIONAL,
                type=types.TYPE_MESSAGE if type_name else types.TYPE_STRING,
                type_name=f".{file.package}.{type_name}" if type_name else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
        for name in _MESSAGES
    }


def list_allocations(socket: Path) -> list[Allocation]:
    """Every device of every container on the node.

    Raises:
        PodResourcesError: no answer, or one that cannot be read.
    """
    try:
        import grpc  # noqa: PLC0415  # only on Kubernetes

        classes = message_classes()
    except ImportError as error:
        raise PodResourcesError(
            f"grpcio and protobuf are missing; {install_hint('kubernetes')}"
        ) from error
    # gRPC's own limit is 4 MiB
    options = [("grpc.max_receive_message_length", _MAX_BYTES)]
    try:
        with grpc.insecure_channel(f"unix://{socket}", options=options) as channel:
            call = channel.unary_unary(_METHOD, classes["Request"].SerializeToString, bytes)
            body = call(classes["Request"](), timeout=_TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        raise PodResourcesError(f"{socket}: {error.code().name}: {error.details()}") from error
    return parse_response(body)


def parse_response(body: bytes) -> list[Allocation]:
    """The allocations in a serialized response.

    Raises:
        PodResourcesError: the bytes are no such response.
    """
    from google.protobuf.message import DecodeError  # noqa: PLC0415  # only on Kubernetes

    try:
        response = message_classes()["Response"].FromString(body)
    except DecodeError as error:
        raise PodResourcesError(f"the kubelet's answer cannot be read: {error}") from error
    return [allocation for pod in response.pod_resources for allocation in _pod_allocations(pod)]


def _pod_allocations(pod: Any) -> Iterator[Allocation]:
    for container in pod.containers:
        owner = {"namespace": pod.namespace, "pod": pod.name, "container": container.name}
        for devices in container.devices:
            for device in devices.device_ids:
                yield Allocation(device=device, **owner)
        # devices of dynamic resource allocation are not among a container's plugin devices
        for claim in container.dynamic_resources:
            for device in claim.claim_resources:
                if "gpu" in device.driver_name:
                    yield Allocation(device=device.device_name, claim=claim.claim_name, **owner)
