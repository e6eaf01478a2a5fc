"""The plugin's steps are those of the program, by a rule that sees each collective once."""

import os
import random
import subprocess
from pathlib import Path

import pytest
from records.nccl.collective_programs import EVALUATION, NORM, PROGRAMS, Step, ddp, fsdp

from lockstep_records.page.reader import read_page, read_rows

from .ranks import compile_driver

STEPS, UNTIL_FOUND = 40, 10
RANKS = {"world": 64, "dp": 8, "tp": 4, "pp": 2, "ep": 16, "edp": 32}


# Steps of varying micro-batches have no distance, and the plugin finds none of them for long.
SEQUENCES = {
    name: [each for _ in range(STEPS) for each in program(random.Random(name))]
    for name, program in PROGRAMS.items()
    if name != "varying micro-batches"
} | {
    "logging of ten steps": (ddp() * 10 + [NORM]) * (STEPS // 10),
    "evaluation after five": (ddp() * 5 + EVALUATION) * (STEPS // 5),
    "evaluation after ten": (fsdp() * 10 + EVALUATION) * (STEPS // 10),
}


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_a_row_is_a_step_of_the_program(root: Path, sequence: Step) -> None:
    names = ["", *RANKS]
    text = "".join(
        f"{names.index(str(name))} {RANKS[str(name)]} {function} {size}\n"
        for name, function, size in sequence
    )
    environment = {
        "LOCKSTEP_DIR": str(root),
        "LOCKSTEP_JOB_ID": "j",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    compiled = compile_driver()
    command = [str(compiled.abuse), str(compiled.plugin), "replay"]
    subprocess.run(command, input=text, text=True, check=True, env=os.environ | environment)
    page = read_page(root / "jobs" / "j" / "0" / "rank-00000.nccl.page")
    steps = [row["step"] for row in read_rows(page)]
    assert len(steps) >= STEPS - UNTIL_FOUND
    assert steps == [*range(steps[0], STEPS)]
