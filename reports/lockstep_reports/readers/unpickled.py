"""Reads plain values, pickled or as JSON, within bounds; nothing in them is ever called."""

import io
import pickle
import pickletools
import re
from typing import Any

from lockstep_records.text.documents import decode_json

# Opcodes that call or import something; a pickle that holds one is refused before it is loaded.
_REFUSED = re.compile(
    "(STACK_)?GLOBAL|REDUCE|BUILD|INST|OBJ|NEWOBJ(_EX)?|EXT[124]|(BIN)?PERSID"
    "|NEXT_BUFFER|READONLY_BUFFER"
)
_MEMO = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_MAX_OPCODES = 1 << 22
# A value that is referred to again counts again: to write it out would cost that much.
_MAX_VALUES, _MAX_DEPTH, _MAX_INTEGER = 1 << 23, 64, 1 << 63
_CHARACTERS_A_VALUE = 64


class _NoClass(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it asks for {pid!r}")


def plain_values(data: bytes) -> Any:
    """The value of a pickle made of dicts, lists, tuples, texts and numbers.

    Raises:
        ValueError: it holds anything else, too much, or is cut short; nothing of it has been run.
    """
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if _REFUSED.fullmatch(opcode.name):
                raise ValueError(f"it holds more than plain values ({opcode.name})")
            # A huge memo index would make the unpickler allocate that much.
            if opcode.name in _MEMO and isinstance(argument, int) and argument > len(data):
                raise ValueError("its memo is larger than the file")
            if number > _MAX_OPCODES:
                raise ValueError(f"it holds more than {_MAX_OPCODES:,} operations of pickle")
        # Every opcode is checked above, and this unpickler finds no class.
        value = _NoClass(io.BytesIO(data)).load()
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
        raise ValueError(f"it is not a complete pickle of plain values ({error})") from error
    check_size(value)
    return value


def json_values(data: bytes) -> Any:
    """The value of a JSON document; raises ValueError as ``plain_values``."""
    value = decode_json(data, _MAX_VALUES)
    check_size(value)
    return value


def check_size(value: Any) -> None:
    """Refuses a value that is too deep or, written out, too large; or with a huge integer.

    Raises:
        ValueError: it is; the text says how.
    """
    num_values, level = 0, [value]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.keys()
                below += each.values()
            elif isinstance(each, list | tuple | set | frozenset):
                below += each
            elif isinstance(each, str | bytes | bytearray):
                num_values += len(each) // _CHARACTERS_A_VALUE
            elif isinstance(each, int) and abs(each) >= _MAX_INTEGER:
                raise ValueError("it holds an integer of more than 64 bits")
            if num_values + len(below) > _MAX_VALUES:
                raise ValueError(f"it holds more than {_MAX_VALUES:,} values when written out")
        if not below:
            return
        num_values, level = num_values + len(below), below
    raise ValueError("it is nested too deeply")
