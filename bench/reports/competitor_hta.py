"""Runs HTA on the traces of a folder and prints the ranks that it names, as JSON.

competitor_hta.py FOLDER
"""

import json
import re
import sys
from pathlib import Path

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    """Loads the traces of all ranks and asks for potential stragglers, as HTA documents it."""
    files = sorted(Path(sys.argv[1]).glob("*.json.gz"))
    # A name without a rank counts as the next one: HTA takes files by rank only.
    by_rank = {
        int(match[1]) if (match := re.search(r"rank-?(\d+)", file.name)) else index: str(file)
        for index, file in enumerate(files)
    }
    try:
        ranks = TraceAnalysis(trace_files=by_rank).get_potential_stragglers()
    except Exception as error:  # noqa: BLE001  # whatever fails in HTA is its answer
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:120]}))
        return
    print(json.dumps({"ranks": [int(rank) for rank in ranks]}))


if __name__ == "__main__":
    main()
