"""Every query of the boards, asked of a Prometheus."""
