"""Reads how a traced job was cut into ranks: ``meta-NAME.yaml`` beside ``trace-NAME``."""

from pathlib import Path

import yaml

from lockstep_reports.recording.operations import Layout

MAX_BYTES = 1 << 16
_SIZES = {
    "dp_size": "replicas",
    "pp_size": "stages",
    "dsp_size": "sequence",
    "tp_size": "tensor",
    "vpp_size": "chunks",
    "ep_size": "experts",
    "world_size": "world_size",
}


def find_meta(trace: Path) -> Path | None:
    """The layout beside a trace of the same name, if there is one."""
    name = trace.name.partition(".")[0].removeprefix("trace-")
    places = (trace.with_name(f"meta-{name}{suffix}") for suffix in (".yaml", ".yml"))
    return next((place for place in places if place.is_file()), None)


def read_meta(path: Path) -> dict[str, object]:
    """The fields of a layout file.

    Raises:
        ValueError: it is no mapping of YAML, or a size is no positive whole number.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"{path} is over {MAX_BYTES:,} bytes; a layout has a few lines")
    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no YAML; write lines such as 'dp_size: 8'") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} is no mapping; write lines such as 'dp_size: 8'")  # noqa: TRY004  # what is wrong is the file
    for name in _SIZES:
        size = fields.get(name, 1)
        if type(size) is not int or not 0 < size <= 1 << 24:
            raise ValueError(f"{path}: {name} {size!r} must be a positive whole number")
    return {str(name): value for name, value in fields.items()}


def layout_of(meta: dict[str, object] | None, recorded: Layout) -> Layout:
    """The layout as told, or as the rows show it.

    Raises:
        ValueError: rows go beyond what is told.
    """
    if meta is None:
        return recorded
    told = {field: meta[name] for name, field in _SIZES.items() if name in meta}
    sizes = {field: size for field, size in told.items() if isinstance(size, int)}
    for name, field in _SIZES.items():
        if field in {"experts", "world_size", "chunks"} or field not in sizes:
            continue
        shown = getattr(recorded, field)
        if sizes[field] < shown:
            raise ValueError(f"{name} is told as {sizes[field]}, but the rows show {shown}")
    merged = {field: getattr(recorded, field) for field in _SIZES.values()} | sizes
    if "world_size" not in sizes:
        size = merged["replicas"] * merged["stages"] * merged["sequence"] * merged["tensor"]
        merged["world_size"] = size
    return Layout(**merged)
