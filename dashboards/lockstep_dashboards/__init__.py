"""What we see: boards for Grafana, made from the catalogue."""
