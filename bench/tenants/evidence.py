"""Writes docs/evidence/tenants.md: ``python bench/tenants/evidence.py [NOW.json]``."""

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tenants import campaign
from tenants.table import ATTACKS

_BEFORE = Path(__file__).with_name("before.json")
_NOW = Path(__file__).with_name("now.json")
_PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "tenants.md"
_HEAD = """# One tenant against all others

<!-- Written by `python bench/tenants/evidence.py` from before.json and now.json. Do not edit. -->

{total} attacks of one user without any privilege, made on a live agent (its own user, with
CAP_DAC_READ_SEARCH as in the DaemonSet), a live ledger (SQLite) and a neighbour's job of four
ranks, each of another user (`bench/tenants`). After each attack, while it lasts: the neighbour's
series, events, files and ledger record are byte for byte what they were; `/metrics` and `/healthz`
of the agent, `/healthz`, `/ready`, `/metrics` and one good delivery of the ledger are answered
within 500 ms; no lane hangs, no collector fails, no thread ended, the ticks go on; the agent takes
at most 192 MiB (the limit of its unit), the ledger 320 MiB, and each serves at most 20,000 series.
The neighbour's report is compared at the end.

Left out are the series of a job's host (`..._host_job_...`): control group and network namespace
are those of all processes of the machine on which this runs.

```sh
python bench/tenants/campaign.py --json bench/tenants/now.json  # all; NAME... or --surface
python bench/tenants/fuzz.py --seed 1 --count 100000 files      # pages and side files
python bench/tenants/fuzz.py --seed 1 --count 100000 events     # deliveries to the ledger
python bench/tenants/evidence.py                                # writes this page
```

Before: {before_harm} of {before_count} did harm. Now: {now}. "-" means without harm.
"""


def _cell(results: dict[str, str], name: str) -> str:
    if name not in results:
        return "not run"
    # Clocks and ids differ from run to run and tell a reader nothing.
    text = re.sub(r"\b\d{10}\.\d+\b", "(time)", results[name]) or "-"
    text = text if len(text) <= _MOST else text[:_MOST] + "..."
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


_MOST = 160


def _load(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return found


def page(before: dict[str, str], now: dict[str, str]) -> str:
    """The page: a table for each surface."""
    harm = sum(map(bool, now.values()))
    words = f"{harm} of {len(now)} do" if now else "not run yet"
    parts = [
        _HEAD.format(
            total=len(ATTACKS),
            before_harm=sum(map(bool, before.values())),
            before_count=len(before),
            now=words,
        )
    ]
    for surface in dict.fromkeys(attack.surface for attack in ATTACKS.values()):
        parts.append(f"\n## {surface.capitalize()}\n\n| attack | what | before | now |\n")
        parts.append("| --- | --- | --- | --- |\n")
        for attack in ATTACKS.values():
            if attack.surface == surface:
                what = " ".join(attack.what.split()).replace("|", "\\|").replace("<", "&lt;")
                cells = (_cell(before, attack.name), _cell(now, attack.name))
                parts.append(f"| `{attack.name}` | {what} | {cells[0]} | {cells[1]} |\n")
    return "".join(parts)


def main() -> None:
    """Writes the page."""
    assert campaign.TELLING
    now = Path(sys.argv[1]) if len(sys.argv) > 1 else _NOW
    _PAGE.write_text(page(_load(_BEFORE), _load(now)), encoding="utf-8")


if __name__ == "__main__":
    main()
