"""The service: requests in, scrapes, JSON and pages out; who may, how much, and the access log."""
