"""Collectors of jobs: from their rank pages and processes."""
