"""Says in one line how a state of the neighbour's job differs from the one before."""

import contextlib
import json


def difference(before: object, now: object) -> str:
    """First of what is gone, new or changed."""
    if isinstance(before, list) and isinstance(now, list):
        gone = [line for line in before if line not in now]
        new = [line for line in now if line not in before]
        return f"{len(gone)} gone, {len(new)} new, such as {(new or gone)[0]}"
    if isinstance(before, bytes) and isinstance(now, bytes) and before[:1] == b"{":
        with contextlib.suppress(ValueError):
            old, new_record = json.loads(before), json.loads(now)
            names = [name for name in new_record if new_record[name] != old.get(name)]
            return ", ".join(f"{name} = {str(new_record[name])[:60]}" for name in names[:4])
    return f"{len(bytes(str(now), 'utf-8'))} bytes"
