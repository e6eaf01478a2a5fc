"""Checks of rules before use: their cost, false pages by chance, the tools' own checks."""
