"""Checks a run before any rank starts: layout, text, folders, and the checkpoint to resume."""

import tempfile
from pathlib import Path

from lockstep_trainer.checkpoints.checkpointer import facts_of
from lockstep_trainer.checkpoints.files import find_newest_committed, has_checkpoints
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import batches_of
from lockstep_trainer.data.shards import read_data
from lockstep_trainer.faults.parse import check_faults
from lockstep_trainer.layout.world import Layout
from lockstep_trainer.model.gpt import VOCABULARY
from lockstep_trainer.parallel import STRATEGIES, layout_of


def check_run(
    config: TrainConfig, *, world_size: int, attempt: int = 0, checksums: bool = True
) -> None:
    """Refuses a run that cannot work, by a ValueError with the flag; leaves no file behind.

    From the first restart on (``attempt``) the run resumes without --resume. Token shards are
    verified by ``checksums``: one rank of a node is enough.
    """
    layout = layout_of(config, world_size)
    _check_divisible(config, layout)
    if STRATEGIES[config.strategy].is_independent and config.checkpoint_dir is not None:
        raise ValueError(
            f"--checkpoint-dir {config.checkpoint_dir} does not fit --strategy {config.strategy}, "
            "whose ranks have no step in common; leave it out, or take local-sgd"
        )
    check_faults(config, layout)
    corpus = read_data(config.data, checksums=checksums)
    batches_of(config, corpus, layout, rank=0, done=0)
    _check_summary(config.summary)
    if config.checkpoint_dir is not None:
        facts = facts_of(config, layout, corpus_sha256=corpus.sha256)
        _check_checkpoints(config, config.checkpoint_dir, facts, attempt)


def _check_divisible(config: TrainConfig, layout: Layout) -> None:
    divisions = [
        ("--heads", config.heads, "--tp", layout.tp),
        ("--sequence", config.sequence, "--tp", layout.tp),
        ("the vocabulary", VOCABULARY, "--tp", layout.tp),
        ("--experts", config.experts, "--ep", layout.ep),
    ]
    # FSDP2 shards experts along their input dimension, which is the width.
    if config.strategy == "ep":
        divisions.append(("--width", config.width, "--dp", layout.dp))
    if layout.pp > 1 or config.strategy == "pp":
        divisions.append(("--batch", config.batch, "--micro-batches", config.micro_batches))
        _check_pipeline(config, layout)
    for name, size, flag, parts in divisions:
        if size % parts:
            raise ValueError(
                f"{name} {size} cannot be split into {flag} {parts} equal parts; "
                f"{size - size % parts or parts} could"
            )
    if config.strategy == "ep" and not config.experts:
        raise ValueError("--strategy ep needs --experts, a multiple of --ep, such as 8")
    if config.experts and config.strategy in {"pp", "tp", "hybrid"}:
        raise ValueError(
            f"--experts {config.experts} does not fit --strategy {config.strategy}; "
            "take ddp, fsdp2 or ep"
        )


def _check_pipeline(config: TrainConfig, layout: Layout) -> None:
    stages = layout.pp * config.stages_per_rank
    if stages > config.layers:
        raise ValueError(
            f"--pp {layout.pp} and --schedule {config.schedule} make {stages} stages of "
            f"--layers {config.layers}; give --layers {stages} or fewer stages"
        )
    num_micro_batches = config.micro_batches * config.accumulate
    if config.schedule == "interleaved" and num_micro_batches % layout.pp:
        raise ValueError(
            f"--schedule interleaved needs --micro-batches in multiples of --pp {layout.pp}, "
            f"and --micro-batches {config.micro_batches} is none"
        )
    if config.schedule == "1f1b" and num_micro_batches < layout.pp:
        raise ValueError(
            f"--schedule 1f1b needs as many --micro-batches as stages: {layout.pp}, "
            f"and --micro-batches is {config.micro_batches}"
        )


def _check_summary(summary: Path | None) -> None:
    if summary is None:
        return
    if not summary.parent.is_dir() or summary.is_dir():
        raise ValueError(f"--summary {summary} must be a file in a folder that exists")
    _check_writable("--summary", summary.parent)


def _check_writable(flag: str, folder: Path) -> None:
    """Creates a temporary file in the folder, or in its nearest parent that exists."""
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ValueError(
            f"{flag} {folder} cannot be written ({error.strerror}); give a folder that can"
        ) from error


def _check_checkpoints(
    config: TrainConfig, folder: Path, facts: dict[str, int | str], attempt: int
) -> None:
    _check_writable("--checkpoint-dir", folder)
    if not (config.resume or attempt):
        if has_checkpoints(folder):
            raise ValueError(
                f"--checkpoint-dir {folder} holds checkpoints; "
                "add --resume to resume from them, or give an empty folder"
            )
        return
    _check_holds_no_other_files(folder)
    # By its manifest alone: verifying gigabytes here would delay the start, and restore does it.
    newest = find_newest_committed(folder)
    for name, value in facts.items() if newest else ():
        assert newest is not None
        if newest.facts.get(name) != value:
            raise ValueError(
                f"checkpoint {newest.path} was written with {name} {newest.facts.get(name)} and "
                f"this run has {value}; make them equal or give another --checkpoint-dir"
            )


def _check_holds_no_other_files(folder: Path) -> None:
    if has_checkpoints(folder) or not folder.is_dir():
        return
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if others:
        raise ValueError(
            f"--checkpoint-dir {folder} is not a folder of checkpoints: it holds {others[0]}; "
            "give the folder that an earlier run wrote, or an empty one"
        )
