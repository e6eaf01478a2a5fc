"""What is generated: groups of rules, recorded series, cases for promtool, files."""
