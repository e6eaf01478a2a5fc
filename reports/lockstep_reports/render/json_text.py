"""A report as JSON: what is published of it, field by field."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from lockstep_reports.document.model import Document


def render(document: Document, _path: Path) -> str:
    """The report as indented JSON, with a newline at its end."""
    return json.dumps(document.published, indent=2, allow_nan=False, default=_list_fields) + "\n"


def _list_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
