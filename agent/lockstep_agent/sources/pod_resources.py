"""The kubelet's answer to which container has which device; the only file that knows grpc.

The messages are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, as far as devices go.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lockstep_records.distribution import install_hint

_METHOD = "/v1.PodResourcesLister/List"
_TIMEOUT_SECONDS = 2.0
_MOST_BYTES = 16 << 20
# message: field: number, and the message it holds or nothing for text; all but the names repeat
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
    """The kubelet does not tell; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """One device in one container.

    Attributes:
        device: as the device plugin or the driver of the claim calls it.
        claim: name of the resource claim, empty for a device of a plugin.
    """

    device: str
    namespace: str
    pod: str
    container: str
    claim: str = ""


@cache
def message_classes() -> dict[str, Any]:
    """The message classes by name.

    Raises:
        ImportError: protobuf is not installed.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415  # only on Kubernetes

    file = descriptor_pb2.FileDescriptorProto(
        name="lockstep/podresources.proto", package="lockstep.podresources", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, holds, repeats) in fields.items():
            message.field.add(
                name=field,
                number=number,
                label=kinds.LABEL_REPEATED if repeats else kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_MESSAGE if holds else kinds.TYPE_STRING,
                type_name=f".{file.package}.{holds}" if holds else None,
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
        PodResourcesError: there is no answer, or none that can be read.
    """
    try:
        import grpc  # noqa: PLC0415  # only on Kubernetes

        known = message_classes()
    except ImportError as error:
        raise PodResourcesError(
            f"grpcio and protobuf are missing; {install_hint('kubernetes')}"
        ) from error
    options = [("grpc.max_receive_message_length", _MOST_BYTES)]
    try:
        with grpc.insecure_channel(f"unix://{socket}", options=options) as channel:
            ask = channel.unary_unary(_METHOD, known["Request"].SerializeToString, bytes)
            body = ask(known["Request"](), timeout=_TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        raise PodResourcesError(f"{socket}: {error.code().name}: {error.details()}") from error
    return parse_response(body)


def parse_response(body: bytes) -> list[Allocation]:
    """The allocations in an answer as it goes over the wire.

    Raises:
        PodResourcesError: it is no such answer.
    """
    from google.protobuf.message import DecodeError  # noqa: PLC0415  # only on Kubernetes

    try:
        answer = message_classes()["Response"].FromString(body)
    except DecodeError as error:
        raise PodResourcesError(f"the kubelet's answer cannot be read: {error}") from error
    return [one for pod in answer.pod_resources for one in _of_pod(pod)]


def _of_pod(pod: Any) -> Iterator[Allocation]:
    for container in pod.containers:
        who = {"namespace": pod.namespace, "pod": pod.name, "container": container.name}
        for devices in container.devices:
            for device in devices.device_ids:
                yield Allocation(device=device, **who)
        for claim in container.dynamic_resources:
            for device in claim.claim_resources:
                if "gpu" in device.driver_name:
                    yield Allocation(device=device.device_name, claim=claim.claim_name, **who)
