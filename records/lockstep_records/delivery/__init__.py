"""Events on their way from a node to the ledger: the spool, the sender, and who sends."""
