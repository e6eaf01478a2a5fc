"""Bits of a row's flags by name."""

from lockstep_records.page.layout import ROW_FLAGS

FLAG = {name: 1 << bit for bit, name in enumerate(ROW_FLAGS)}
