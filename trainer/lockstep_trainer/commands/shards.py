"""Writes token shards for training from a folder of text files."""

from pathlib import Path

import click

from lockstep_cli.options import bad_input, option
from lockstep_trainer.data.shards import write_text_shards

_MAX_TOKENS = 1 << 40


@click.command()
@click.argument("texts", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("to", type=click.Path(path_type=Path))
@option(
    "--tokens-per-shard",
    type=click.IntRange(1, _MAX_TOKENS),
    default=1 << 26,
    help="Tokens in each shard but the last; a token is one byte.",
)
def shards(texts: Path, to: Path, tokens_per_shard: int) -> None:
    """Write the text files under TEXTS as token shards to the new folder TO.

    A token is one byte. TO/manifest.json holds the checksum of each shard; every run that trains
    with --data TO verifies them.
    """
    with bad_input(OSError):
        manifest = write_text_shards(texts, to, tokens_per_shard=tokens_per_shard)
    num_tokens = sum(shard.tokens for shard in manifest.shards)
    click.echo(f"wrote {to}: {len(manifest.shards)} shards, {num_tokens} tokens in all")
