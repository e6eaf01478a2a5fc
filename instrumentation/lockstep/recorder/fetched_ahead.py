"""Batches that loaders fetch ahead of the loop: a patch notes them, the monitor writes them."""


class _FetchedAhead:
    """The newest loader's workers, and the batches that they have in the making and ready."""

    workers = batches = 0


fetched_ahead = _FetchedAhead()
