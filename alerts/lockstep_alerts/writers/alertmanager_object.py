"""AlertmanagerConfig of the Prometheus operator: the same routes, with secrets of Kubernetes."""

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from lockstep_alerts.output import to_yaml
from lockstep_alerts.reading.entry import SpecError

FILE_NAME = "lockstep.alertmanagerconfig.yaml"
_API = "monitoring.coreos.com/v1alpha1"
_OPERATORS = ("=~", "!~", "!=", "=")
# Keys of Alertmanager that Go programs spell otherwise than by capitals at the underscores.
_SPELLED = {"api_url": "apiURL", "url": "url"}
_SECRET_FIELDS = {
    "routing_key_file": "routingKey",
    "api_key_file": "apiKey",
    "api_url_file": "apiURL",
    "auth_password_file": "authPassword",
    "url_file": "urlSecret",
}
_UTC = ("UTC", "Etc/UTC")


def alertmanager_object(
    config: Mapping[str, Any], namespace: str, labels: dict[str, str], secret: str
) -> str:
    """Text of the object; in its Secret the base name of each secret's file is its key.

    Raises:
        SpecError: a time window is in a time zone, which the object cannot say.
    """
    spec: dict[str, Any] = {
        "route": _route(config["route"]),
        "receivers": [_receiver(each, secret) for each in config["receivers"]],
    }
    if windows := config.get("time_intervals"):
        spec["muteTimeIntervals"] = [_window(each) for each in windows]
    return to_yaml(
        {
            "apiVersion": _API,
            "kind": "AlertmanagerConfig",
            "metadata": {"name": "lockstep", "namespace": namespace, "labels": labels},
            "spec": spec,
        }
    )


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return _SPELLED.get(name, first + "".join(word.capitalize() for word in others))


def _matcher(text: str) -> dict[str, str]:
    operator = next(each for each in _OPERATORS if each in text)
    name, _, value = text.partition(operator)
    return {"name": name, "value": value.strip('"'), "matchType": operator}


def _route(route: Mapping[str, Any]) -> dict[str, Any]:
    special: dict[str, Callable[[Any], object]] = {
        "matchers": lambda matchers: [_matcher(each) for each in matchers],
        "routes": lambda routes: [_route(each) for each in routes],
    }
    return {
        _camel(key): special[key](value) if key in special else value
        for key, value in route.items()
    }


def _receiver(receiver: Mapping[str, Any], secret: str) -> dict[str, Any]:
    return {
        _camel(key): value if key == "name" else [_entry(each, secret) for each in value]
        for key, value in receiver.items()
    }


def _entry(entry: Mapping[str, Any], secret: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in entry.items():
        if key in _SECRET_FIELDS:
            fields[_SECRET_FIELDS[key]] = _key(value, secret)
        elif key == "http_config":
            file = value["authorization"]["credentials_file"]
            fields["httpConfig"] = {"authorization": {"credentials": _key(file, secret)}}
        elif key == "headers":
            fields[key] = [{"key": name, "value": text} for name, text in value.items()]
        else:
            fields[_camel(key)] = value
    return fields


def _key(file: str, secret: str) -> dict[str, str]:
    return {"name": secret, "key": PurePath(file).name}


def _window(window: Mapping[str, Any]) -> dict[str, Any]:
    for interval in window["time_intervals"]:
        if interval["location"] not in _UTC:
            raise SpecError(
                f"{window['name']}: time_zone {interval['location']!r}: an object knows "
                "no time zones; write the hours in UTC, or mount alertmanager.yaml"
            )
    return {
        "name": window["name"],
        "timeIntervals": [_interval(each) for each in window["time_intervals"]],
    }


def _interval(interval: Mapping[str, Any]) -> dict[str, Any]:
    fields = {_camel(key): value for key, value in interval.items() if key != "location"}
    if days := fields.get("daysOfMonth"):
        fields["daysOfMonth"] = [{"start": int(day), "end": int(day)} for day in days]
    if times := fields.get("times"):
        fields["times"] = [
            {"startTime": each["start_time"], "endTime": each["end_time"]} for each in times
        ]
    return fields
