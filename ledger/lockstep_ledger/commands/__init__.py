"""The subcommands of ``lockstep ledger``."""
