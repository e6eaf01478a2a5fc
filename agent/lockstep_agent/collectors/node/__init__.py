"""Collectors of the node itself: host, storage, PCIe links, kernel log, agent."""
