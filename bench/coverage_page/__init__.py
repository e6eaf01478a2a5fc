"""What must be covered, and by which series, indicator, panel and rule it is: docs/coverage.md.

It lives here because components never import each other, and this reads the catalogue, the spec of
the alerts and the generated files of rules and boards.
"""
