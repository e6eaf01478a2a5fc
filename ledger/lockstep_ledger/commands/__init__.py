"""What people type: the subcommands of ``lockstep ledger``."""
