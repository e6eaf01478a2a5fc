"""Max-min fair shares of a bounded amount: no user takes the share of another."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)


def fair_shares(demands: Mapping[_Key, int], total: int) -> dict[_Key, int]:
    """Who demands at most an equal share gets it all; the others get equal parts of the rest."""
    shares: dict[_Key, int] = {}
    left = total
    for position, key in enumerate(sorted(demands, key=demands.__getitem__)):
        shares[key] = min(demands[key], left // (len(demands) - position))
        left -= shares[key]
    return shares


def nested_shares(
    demands: Mapping[_Key, int], owners: Mapping[_Key, int | None], total: int
) -> dict[_Key, int]:
    """Shares among owners first, then each owner's share among what he owns.

    Args:
        demands: see ``fair_shares``.
        owners: user id of each key; those without one have a common share.
        total: see ``fair_shares``.
    """
    by_owner: dict[int | None, dict[_Key, int]] = {}
    for key, demand in demands.items():
        by_owner.setdefault(owners.get(key), {})[key] = demand
    of_owners = fair_shares({o: sum(d.values()) for o, d in by_owner.items()}, total)
    return {
        key: share
        for owner, of_owner in by_owner.items()
        for key, share in fair_shares(of_owner, of_owners[owner]).items()
    }
