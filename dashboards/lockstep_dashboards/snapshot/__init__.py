"""Boards without a Grafana: a page of their panels, as a file, a picture, or served."""
