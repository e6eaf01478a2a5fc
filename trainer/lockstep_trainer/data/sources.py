"""The text of a run: the standard library, a folder of text files, or token shards."""

import sys
from pathlib import Path

from lockstep_trainer.data.corpus import Corpus, read_corpus, read_text_folder, standard_library
from lockstep_trainer.data.shards import MANIFEST, check_shards, open_shards, read_manifest


def say_on_stderr(line: str) -> None:
    """Writes one line for people to stderr."""
    sys.stderr.write(f"lockstep: {line}\n")
    sys.stderr.flush()


def read_data(path: Path | None, *, checksums: bool = True) -> Corpus:
    """The text of a run.

    Args:
        path: folder of text files or of token shards; None for the standard library.
        checksums: whether to verify the checksums of shards, which reads them once.

    Raises:
        ValueError: the text cannot be used; one sentence names the file and the remedy.
    """
    try:
        if path is None:
            return read_corpus(standard_library())
        if not path.is_dir():
            raise ValueError(
                f"--data {path} is not a folder; give one of text files or token shards"
            )
        if not (path / MANIFEST).exists():
            return read_text_folder(path)
        manifest = read_manifest(path)
        check_shards(path, manifest, checksums=checksums, say=say_on_stderr)
        return open_shards(path, manifest)
    except OSError as error:
        raise ValueError(
            f"the data cannot be read: {error.filename or path}: {error.strerror}"
        ) from error
