"""The agent of a lab's node: as shipped, but it tells the end of ranks after seconds, no minute."""

from lockstep_agent.jobs import unreported
from lockstep_cli.main import main

GONE_SECONDS = 12.0
REPORT_SECONDS = GONE_SECONDS + 2 * unreported.POLL_SECONDS
"""Within which the ledger has heard of the end of ranks that have no launcher."""

if __name__ == "__main__":
    unreported._GONE_SECONDS = GONE_SECONDS
    main()
