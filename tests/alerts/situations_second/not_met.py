"""All situations of the second set, and those of them that do not come right yet."""

from pathlib import Path

import yaml

from .bad import BAD
from .ordinary import ORDINARY

CASES = (*ORDINARY, *BAD)
FILE = Path(__file__).with_name("not_met.yaml")
NOT_MET: dict[str, str] = yaml.safe_load(FILE.read_text(encoding="utf-8")) or {}
"""What happens instead, by the name of the situation."""
