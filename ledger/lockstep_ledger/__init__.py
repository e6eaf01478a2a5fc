"""The record of each job: outcomes, goodput and SLO counts, served over HTTP."""
