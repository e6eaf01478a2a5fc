"""``lockstep stack``: Prometheus, Alertmanager and a pager as plain processes over one folder."""
