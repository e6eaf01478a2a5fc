"""An independent model of the ledger, and histories with a known truth to try both on."""
