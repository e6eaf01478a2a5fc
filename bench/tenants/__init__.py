"""Attacks of one user on all others of a node, as a table, with the programs that they run."""
