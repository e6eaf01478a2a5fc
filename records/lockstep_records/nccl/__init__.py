"""Words of NCCL and RCCL themselves on a job: their status socket, files and profiler events."""
