"""Holds the counters and outcomes of a store against a recount of its events: recount.py STORE."""

import sys

from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.recount import differences

if __name__ == "__main__":
    found = differences(open_store(sys.argv[1], read_only=True))
    print("\n".join(found[:20]) or "counters and outcomes equal the recount", file=sys.stderr)
    sys.exit(bool(found))
