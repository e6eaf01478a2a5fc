"""What NCCL and RCCL say of a job by themselves: their status socket, files and profiler events."""
