"""Makes token shards for training from a folder of text files."""

from pathlib import Path

import click

from lockstep_trainer.data.shards_writer import write_text_shards

_MOST_TOKENS = 1 << 40


@click.command()
@click.argument("texts", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("to", type=click.Path(path_type=Path))
@click.option(
    "--tokens-per-shard",
    type=click.IntRange(1, _MOST_TOKENS),
    default=1 << 26,
    show_default=True,
    help="Tokens in a shard, the last one aside; a token is one byte.",
)
def shards(texts: Path, to: Path, tokens_per_shard: int) -> None:
    """Write the text files under TEXTS as token shards to the new folder TO.

    A token is a byte. Each shard's checksum stands in TO/manifest.json and is checked by every run
    that trains on it with --data TO.
    """
    try:
        made = write_text_shards(texts, to, tokens_per_shard=tokens_per_shard)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    tokens = sum(shard.tokens for shard in made.shards)
    click.echo(f"written: {to}, {len(made.shards)} shards of {tokens} tokens together")
