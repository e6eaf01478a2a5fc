"""Writes the pages of the documentation that only state what the code declares."""
