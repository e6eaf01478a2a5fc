"""What GPU time costs, from values alone: rate card, days and months of a zone, lines, groups."""
