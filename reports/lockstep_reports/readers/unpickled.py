"""Reads pickles of plain values. Nothing is ever called: no class, no function, no import."""

import io
import pickle
import pickletools
from typing import Any

# Opcodes that call or import something; a pickle that holds one is refused before it is loaded.
_REFUSED = frozenset(
    {
        "GLOBAL",
        "STACK_GLOBAL",
        "REDUCE",
        "BUILD",
        "INST",
        "OBJ",
        "NEWOBJ",
        "NEWOBJ_EX",
        "EXT1",
        "EXT2",
        "EXT4",
        "PERSID",
        "BINPERSID",
        "NEXT_BUFFER",
        "READONLY_BUFFER",
    }
)
_MEMO = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class _NoClass(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it asks for {pid!r}")


def plain_values(data: bytes) -> Any:
    """The value of a pickle made of dicts, lists, tuples, texts and numbers.

    Raises:
        ValueError: it holds anything else, or is cut short; nothing of it has been run.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _REFUSED:
                raise ValueError(f"it holds more than plain values ({opcode.name})")
            # A huge memo index would make the unpickler allocate that much.
            if opcode.name in _MEMO and isinstance(argument, int) and argument > len(data):
                raise ValueError("its memo is larger than the file")
        # Every opcode is checked above, and this unpickler finds no class.
        return _NoClass(io.BytesIO(data)).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        IndexError,
        KeyError,
        AttributeError,
        TypeError,
        UnicodeDecodeError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        raise ValueError(f"it is no whole pickle of plain values ({error})") from error
