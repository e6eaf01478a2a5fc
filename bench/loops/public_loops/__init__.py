"""Asks of loops as other people write them who is named, when a process of them turns slow."""
