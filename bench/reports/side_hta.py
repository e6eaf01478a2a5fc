"""HTA's side: reads the traces of a folder and prints the ranks that it accuses, as JSON.

side_hta.py FOLDER
"""

import json
import re
import sys
from pathlib import Path

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    """As its documentation says: load the traces of all ranks, ask for potential stragglers."""
    files = sorted(Path(sys.argv[1]).glob("*.json.gz"))
    by_rank = {
        int(told[1]) if (told := re.search(r"rank-?(\d+)", file.name)) else place: str(file)
        for place, file in enumerate(files)
    }
    try:
        accused = TraceAnalysis(trace_files=by_rank).get_potential_stragglers()
    except Exception as error:  # noqa: BLE001  # a peer's own failure is what is told
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:120]}))
        return
    print(json.dumps({"accused": [int(rank) for rank in accused]}))


if __name__ == "__main__":
    main()
