"""Checks a run before any rank starts work: layout, text, folders, the checkpoint to resume."""

import tempfile
from pathlib import Path

from lockstep_trainer.checkpoints.checkpoint import facts_of
from lockstep_trainer.checkpoints.files import find_newest_committed, has_checkpoints
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import batches_of
from lockstep_trainer.data.sources import read_data
from lockstep_trainer.faults import check_faults
from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import VOCABULARY
from lockstep_trainer.parallel import layout_of


def check_run(
    config: TrainConfig, *, world_size: int, attempt: int = 0, checksums: bool = True
) -> None:
    """Refuses a run that cannot work, and leaves nothing behind.

    Args:
        config: the run.
        world_size: ranks that it will have.
        attempt: how often it was started again; from 1 on it resumes by itself.
        checksums: whether token shards are read through; one rank of a node is enough.

    Raises:
        ValueError: what cannot be, in one sentence that names the flag and what would be right.
    """
    layout = layout_of(config, world_size)
    _check_fit(config, layout)
    if config.slow_rank is not None and config.slow_rank >= world_size:
        raise ValueError(
            f"--slow-rank {config.slow_rank} is outside the world of {world_size} ranks; "
            f"they run from 0 to {world_size - 1}"
        )
    check_faults(config, layout)
    corpus = read_data(config.data, checksums=checksums)
    batches_of(config, corpus, layout, rank=0, done=0)
    _check_summary(config.summary)
    if config.checkpoint_dir is not None:
        facts = facts_of(config, layout, corpus_sha256=corpus.sha256)
        _check_checkpoints(config, config.checkpoint_dir, facts, attempt)


def _check_fit(config: TrainConfig, layout: Layout) -> None:
    """Refuses degrees that the model or the batch cannot be cut into."""
    whole_cuts = [
        ("--heads", config.heads, "--tp", layout.tp),
        ("--sequence", config.sequence, "--tp", layout.tp),
        ("the vocabulary", VOCABULARY, "--tp", layout.tp),
        ("--experts", config.experts, "--ep", layout.ep),
    ]
    if config.strategy == "ep":
        whole_cuts.append(("--width", config.width, "--dp", layout.dp))
    if layout.pp > 1 or config.strategy == "pp":
        whole_cuts.append(("--batch", config.batch, "--micro-batches", config.micro_batches))
        _check_pipeline(config, layout)
    for name, size, flag, parts in whole_cuts:
        if size % parts:
            raise ValueError(
                f"{name} {size} cannot be cut into {flag} {parts} equal parts; "
                f"{size - size % parts or parts} could"
            )
    if config.strategy == "ep" and not config.experts:
        raise ValueError("--strategy ep needs --experts, a multiple of --ep, such as 8")
    if config.experts and config.strategy in {"pp", "tp", "hybrid"}:
        raise ValueError(
            f"--experts {config.experts} has no place in --strategy {config.strategy}; "
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
    """Tries the folder, or the nearest above it that exists."""
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
                "add --resume to go on from them, or give an empty folder"
            )
        return
    _check_holds_no_other_files(folder)
    newest = find_newest_committed(folder)
    for name, value in facts.items() if newest else ():
        assert newest is not None
        if newest.facts.get(name) != value:
            raise ValueError(
                f"checkpoint {newest.path} was made with {name} {newest.facts.get(name)} and this "
                f"run has {value}; make them equal or give another --checkpoint-dir"
            )


def _check_holds_no_other_files(folder: Path) -> None:
    if has_checkpoints(folder) or not folder.is_dir():
        return
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if others:
        raise ValueError(
            f"--checkpoint-dir {folder} is no folder of checkpoints: it holds {others[0]}; "
            "give the folder that an earlier run wrote, or an empty one"
        )
