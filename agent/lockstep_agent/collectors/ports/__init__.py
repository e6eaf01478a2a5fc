"""Collectors of network interfaces and RDMA ports."""
