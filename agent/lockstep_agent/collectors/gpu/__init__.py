"""Collectors of GPUs: by the driver (NVML), and by DCGM."""
