"""From readings to the text of a scrape, in our names and in those of dcgm-exporter."""
