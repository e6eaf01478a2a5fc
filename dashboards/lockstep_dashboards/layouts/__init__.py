"""The boards as data: rows of panels about series of the catalogue."""
