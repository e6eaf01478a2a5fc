"""Reads plain values, pickled or as JSON, within bounds; nothing in them is ever called."""

import pickle
import pickletools
from collections.abc import Callable, Sequence
from typing import Any

from lockstep_records.text.documents import decode_json

_MAX_OPCODES = 1 << 22
# A value that is referred to again counts again: to write it out would cost that much.
_MAX_VALUES, _MAX_DEPTH, _MAX_INTEGER = 1 << 23, 64, 1 << 63
_CHARACTERS_A_VALUE = 64
_TOPS = {"APPEND": 1, "SETITEM": 2, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
"""Values above the mark, of operations that need no mark."""


class _Plain:
    """The machine of pickle, as far as plain values need it.

    Keys are texts, numbers, or tuples of them: of a nested one the hash alone can take for ever.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._steps: dict[str, Callable[[Any], Any]] = {}

    def run(self, name: str, argument: Any) -> None:
        """Runs one operation; raises ValueError for one that plain values do not need."""
        step = self._steps.get(name)
        if step is None:
            step = self._steps[name] = self._step_of(name)
        step(argument)

    def _step_of(self, name: str) -> Callable[[Any], Any]:
        push, stack, marks, memo = self.stack.append, self.stack, self._marks, self._memo
        steps: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _: None),
            **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), self._note),
            **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda at: push(memo[at])),
            **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2"), push),
            **dict.fromkeys(("LONG", "LONG1", "LONG4"), self._push_integer),
            **dict.fromkeys(("FLOAT", "BINFLOAT"), push),
            "MEMOIZE": lambda _: self._note(len(memo)),
            "MARK": lambda _: marks.append(len(stack)),
            "POP": lambda _: stack.pop(),
            "POP_MARK": lambda _: self._collect(name),
            "NONE": lambda _: push(None),
            "NEWTRUE": lambda _: push(True),
            "NEWFALSE": lambda _: push(False),
            "EMPTY_TUPLE": lambda _: push(()),
            "EMPTY_LIST": lambda _: push([]),
            "EMPTY_DICT": lambda _: push({}),
            "EMPTY_SET": lambda _: push(set()),
            "LIST": lambda _: push(self._collect(name)),
            "DICT": lambda _: push(dict(_pairs(self._collect(name)))),
            "FROZENSET": lambda _: push(frozenset(map(_key, self._collect(name)))),
            **dict.fromkeys(("APPEND", "APPENDS"), lambda _: self._extend(self._collect(name))),
            **dict.fromkeys(("SETITEM", "SETITEMS"), lambda _: self._update(self._collect(name))),
            "ADDITEMS": lambda _: self._add(self._collect(name)),
            **dict.fromkeys(
                ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), lambda _: push(tuple(self._collect(name)))
            ),
        }
        if any(word in name for word in ("UNICODE", "STRING", "BYTES")):
            return push
        if name not in steps:
            raise ValueError(f"it holds more than plain values ({name})")
        return steps[name]

    def _note(self, at: int) -> None:
        self._memo[at] = self.stack[-1]

    def _push_integer(self, value: int) -> None:
        if abs(value) >= _MAX_INTEGER:
            raise ValueError("it holds an integer of more than 64 bits")
        self.stack.append(value)

    def _collect(self, name: str) -> list[Any]:
        """Takes what lies above the last mark, or a number of values."""
        count = _TOPS.get(name)
        begin = self._marks.pop() if count is None else len(self.stack) - count
        values = self.stack[begin:] if begin >= 0 else []
        del self.stack[begin:]
        return values

    def _extend(self, values: list[Any]) -> None:
        self.stack[-1].extend(values)

    def _update(self, values: list[Any]) -> None:
        self.stack[-1].update(_pairs(values))

    def _add(self, values: list[Any]) -> None:
        self.stack[-1].update(map(_key, values))


def _pairs(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(_key(key), value) for key, value in zip(values[::2], values[1::2], strict=True)]


def _key(value: Any) -> Any:
    if type(value) is str:
        return value
    for part in value if isinstance(value, tuple) else (value,):
        if part is not None and not isinstance(part, str | bytes | int | float):
            raise ValueError("it holds a key that is nested")
    return value


def plain_values(data: bytes) -> Any:
    """The value of a pickle made of dicts, lists, tuples, texts and numbers.

    Raises:
        ValueError: it holds anything else, too much, or is cut short; nothing of it has been run.
    """
    machine = _Plain()
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number > _MAX_OPCODES:
                raise ValueError(f"it holds more than {_MAX_OPCODES:,} operations of pickle")
            machine.run(opcode.name, argument)
        value = machine.stack.pop()
    except (pickle.UnpicklingError, LookupError, AttributeError, TypeError, EOFError) as error:
        raise ValueError(f"it is not a complete pickle of plain values ({error})") from error
    check_size(value)
    return value


def json_values(data: bytes) -> Any:
    """The value of a JSON document; raises ValueError as ``plain_values``."""
    value = decode_json(data, _MAX_VALUES)
    check_size(value)
    return value


def check_size(value: Any) -> None:
    """Raises ValueError for a value too deep or, written out, too large; or with a huge integer."""
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
