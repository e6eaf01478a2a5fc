"""Two alternating copies of one section: a writer killed at any moment leaves one intact."""

import mmap
from zlib import crc32

from lockstep_records.page.section import Section


class Slots:
    """The writing side of a section that is replaced in one store, in the older of two slots.

    Attributes:
        words: its eight-byte words as unsigned integers; ``section.word(name)`` is an index.
        signed: the same words as signed integers.
        floats: the same words as doubles.
    """

    def __init__(self, file: mmap.mmap, section: Section, offsets: tuple[int, int]) -> None:
        self._file, self._section = file, section
        self._slices = tuple(slice(at, at + section.size) for at in offsets)
        self._data = bytearray(section.size)
        self._body = memoryview(self._data)[: section.offsets["checksum"]]
        self.words = memoryview(self._data).cast("Q")
        self.signed = memoryview(self._data).cast("q")
        self.floats = memoryview(self._data).cast("d")
        self._checksum = section.word("checksum")
        self._written = section.word("written_ns")
        self._present = section.word("present")
        assert section.word("sequence") == 0

    def commit(self, now_ns: int) -> None:
        """Writes the state into the older slot; ``now_ns`` is monotonic."""
        words = self.words
        sequence = words[0] + 1
        words[0] = sequence
        words[self._written] = now_ns
        words[self._checksum] = crc32(self._body)
        # The other slot keeps the state before, whenever this copy is interrupted.
        self._file[self._slices[sequence & 1]] = self._data

    def know(self, name: str, value: float) -> None:
        """Sets an optional field: a double or a signed integer, as the field is."""
        word = self._section.word(name)
        if self._section.codes[name] == "d":
            self.floats[word] = value
        else:
            self.signed[word] = int(value)
        self.words[self._present] |= self._section.presence[name]

    def count(self, name: str, item: str = "", number: int = 1) -> None:
        """Adds to an integer, or to the one of an array that counts an item."""
        self.words[self._word_of(name, item)] += number

    def add(self, name: str, seconds: float, item: str = "") -> None:
        """Adds to a double, or to the one of an array that belongs to an item."""
        self.floats[self._word_of(name, item)] += seconds

    def _word_of(self, name: str, item: str) -> int:
        return self._section.word(name) + (self._section.items[name].index(item) if item else 0)

    def release(self) -> None:
        """Releases the memory that the views hold."""
        for view in (self._body, self.words, self.signed, self.floats):
            view.release()
