"""The numbers of NVML under their names are those of pynvml and of NVML's header."""

from pathlib import Path

import pynvml

from lockstep_agent.sources.nvml import ids

# Names and numbers that a C program printed, which was compiled with nvml.h of CUDA 13.5.
HEADER = Path(__file__).parents[2] / "fixtures" / "nvml-stub" / "nvml-header-13.5.txt"
NUMBERS = {name: number for name, number in vars(ids).items() if isinstance(number, int)}


def test_the_numbers_are_those_of_pynvml() -> None:
    assert {name: getattr(pynvml, name, number) for name, number in NUMBERS.items()} == NUMBERS


def test_the_numbers_are_those_of_the_header() -> None:
    lines = map(str.split, HEADER.read_text(encoding="utf-8").splitlines())
    header = {name: int(number) for name, number in lines}
    assert len(header) > 100
    assert header == {name: NUMBERS[name] for name in header}
