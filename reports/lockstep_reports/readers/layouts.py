"""Reads how a traced job is divided over ranks: ``meta-NAME.yaml`` next to ``trace-NAME``."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
    """The layout file of the same name next to a trace, if there is one."""
    name = trace.name.partition(".")[0].removeprefix("trace-")
    candidates = (trace.with_name(f"meta-{name}{suffix}") for suffix in (".yaml", ".yml"))
    return next((path for path in candidates if path.is_file()), None)


def read_meta(path: Path) -> dict[str, Any]:
    """The fields of a layout file.

    Raises:
        ValueError: it is not a mapping of YAML, or a size is not a positive whole number.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"{path} is over {MAX_BYTES:,} bytes; a layout has a few lines")
    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML; write lines such as 'dp_size: 8'") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} is not a mapping; write lines such as 'dp_size: 8'")  # noqa: TRY004  # what is wrong is the file
    for name in _SIZES:
        size = fields.get(name, 1)
        if type(size) is not int or not 0 < size <= 1 << 24:
            # A value may be a knot of aliases that would fill the memory when written out.
            what = size if isinstance(size, int | float) else type(size).__name__
            raise ValueError(f"{path}: {name} {what} must be a positive whole number")
    return {str(name): value for name, value in fields.items()}


def layout_of(meta: dict[str, Any] | None, recorded: Layout) -> Layout:
    """The layout of the file; where the file has no size, the one that the rows show.

    Raises:
        ValueError: the rows go beyond a size of the file.
    """
    if meta is None:
        return recorded
    merged = asdict(recorded)
    for name, field in _SIZES.items():
        size = meta.get(name, merged[field])
        if size < merged[field] and field not in {"experts", "world_size", "chunks"}:
            raise ValueError(f"{name} is {size} in the layout, but the rows show {merged[field]}")
        merged[field] = size
    if "world_size" not in meta:
        sizes = (merged[name] for name in ("replicas", "stages", "sequence", "tensor"))
        merged["world_size"] = math.prod(sizes)
    return Layout(**merged)
