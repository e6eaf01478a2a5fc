"""A device that runs behind the host: streams, events and collectives as on a GPU with NCCL."""
