"""The views of panels: one file each, from the answers to plain values for page and plotly."""
