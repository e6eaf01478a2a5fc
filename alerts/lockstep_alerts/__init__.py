"""Alerts: a written spec becomes rules and routes, and a local stack runs them."""
