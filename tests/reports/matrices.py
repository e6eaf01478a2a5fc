"""Large matrices of properties: the default run has the first values, ``release`` the others."""

from collections.abc import Iterable

import pytest


def matrix(values: Iterable[object], num_default: int) -> list[object]:
    """Values for ``parametrize``; all after the first ``num_default`` are marked release."""
    listed = list(values)
    marked = [pytest.param(value, marks=pytest.mark.release) for value in listed[num_default:]]
    return [*listed[:num_default], *marked]
