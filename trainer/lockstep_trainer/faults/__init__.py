"""Fault injection by rank and step, replayable: ranks that are really late, gone or wrong.

A kind of fault is one file of this folder and one line in ``kinds``.
"""
