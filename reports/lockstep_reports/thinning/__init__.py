"""Thins jobs of an archive by age."""
