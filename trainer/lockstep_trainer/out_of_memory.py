"""What running out of memory is to the trainer: an exit status of its own."""

from lockstep.out_of_memory import OutOfMemory, out_of_memory_in

OUT_OF_MEMORY = 76

__all__ = ["OUT_OF_MEMORY", "OutOfMemory", "out_of_memory_in"]
