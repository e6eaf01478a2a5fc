"""The table of instrumentation points on the installed torch: all there, and put in once."""

import functools
import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import Mock
from weakref import ref

import pytest
import torch

from lockstep.patches import points
from lockstep.patches.install import install, install_on
from lockstep.patches.points import ORIGINAL, InstrumentationPoint, find, is_present, owner_of
from lockstep.patches.table import COLLECTIVES, REPLACED, TABLE

from ..torch_versions import IS_TORCH_2_7
from ..uninstalled import uninstall

GROUPS = sorted({point.group for point in REPLACED})


def paths(table: tuple[InstrumentationPoint, ...]) -> list[str]:
    return [point.path for point in table]


def in_torch(point: InstrumentationPoint) -> Any:
    return getattr(owner_of(point.owner), point.attribute, None)


@pytest.fixture(autouse=True)
def _clean_torch() -> Iterator[None]:
    """Other tests leave their replacements in torch; so does this one."""
    uninstall()
    points._reported.clear()
    yield
    uninstall()


@pytest.mark.parametrize("point", TABLE, ids=paths(TABLE))
def test_the_installed_torch_has_each_attribute(point: InstrumentationPoint) -> None:
    if point.is_optional and not is_present(point):
        pytest.skip(f"torch {torch.__version__} has no {point.path}, and nothing is lost")
    if point.group == "pipeline" and IS_TORCH_2_7:
        pytest.skip("schedules of torch 2.7 wait for their transfers themselves")
    assert is_present(point)


def test_no_attribute_is_listed_twice() -> None:
    assert len(set(paths(TABLE))) == len(TABLE)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_replaced_once_by_itself_and_its_very_objects_come_back(group: Any) -> None:
    if group == "pipeline" and IS_TORCH_2_7:
        pytest.skip("schedules of torch 2.7 wait for their transfers themselves")
    of_group = [point for point in REPLACED if point.group == group]
    originals = {point: found for point in of_group if (found := find(point)) is not None}
    install(group)
    replacements = {point: in_torch(point) for point in originals}
    for point, original in originals.items():
        assert replacements[point] is not original, point.path
        assert getattr(replacements[point], ORIGINAL) is original, point.path
    assert {point.group for point in REPLACED if hasattr(in_torch(point), ORIGINAL)} == {group}
    install(group)
    assert all(in_torch(point) is each for point, each in replacements.items())
    uninstall()
    assert all(in_torch(point) is each for point, each in originals.items())


def test_whoever_imported_a_function_before_holds_its_replacement_by_any_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = ModuleType("script")
    vars(script).update(reduce=torch.distributed.all_reduce, keep=torch.distributed.isend)
    monkeypatch.setitem(sys.modules, "script", script)
    for number, stand_in in enumerate((object(), Mock(spec=ModuleType))):
        monkeypatch.setitem(sys.modules, f"stand_in_{number}", stand_in)
    install("collectives")
    from torch.distributed import distributed_c10d  # noqa: PLC0415  # looked up after the install

    held = torch.distributed.all_reduce, distributed_c10d.all_reduce, script.reduce
    assert len({*map(id, held)}) == 1
    assert hasattr(torch.distributed.all_reduce, ORIGINAL)
    assert script.keep is distributed_c10d.isend


@pytest.mark.parametrize(
    "change",
    [
        {"attribute": "gone_in_torch_9"},
        {"owner": "torch.gone:Nothing"},
        {"parameters": ("new",)},
        {"requires": ("torch.distributed:gone",)},
    ],
    ids=["no such attribute", "no such owner", "other parameters", "what it requires"],
)
def test_what_a_torch_lacks_is_said_once_and_costs_nothing_else(
    change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    other, point = COLLECTIVES[:2]
    lacking = replace(point, **change)
    for _ in range(2):
        install("collectives", (lacking, other))
    (record,) = caplog.records
    assert lacking.path in record.message
    assert point.without_it in record.message
    assert hasattr(in_torch(other), ORIGINAL)
    assert not hasattr(in_torch(point), ORIGINAL)


def test_what_is_optional_is_left_out_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    install("collectives", (replace(COLLECTIVES[0], attribute="gone", is_optional=True),))
    assert caplog.records == []


def test_anothers_wrapper_is_kept_and_not_wrapped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    install("backward")
    ours: Any = torch.autograd.backward

    @functools.wraps(in_torch(COLLECTIVES[0]))
    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    setattr(theirs, ORIGINAL, "copied by functools.wraps")
    with monkeypatch.context() as patched:
        patched.setattr(torch.autograd, "backward", theirs)
        install("backward")
        assert torch.autograd.backward is theirs
        assert ours.original is not theirs
    uninstall()
    assert not hasattr(torch.autograd.backward, ORIGINAL)


class Stage:
    """An object of the user with a method that is replaced."""

    def forward_one_chunk(self, number: int) -> int:
        return number


def adding(amount: int) -> Any:
    def wrap(original: Any) -> Any:
        def call(number: int) -> Any:
            return original(number) + amount

        return call

    return wrap


def test_a_method_of_an_object_takes_the_last_wrapper() -> None:
    stage = Stage()
    install_on(stage, "forward_one_chunk", adding(1))
    assert stage.forward_one_chunk(10) == 11
    install_on(stage, "forward_one_chunk", adding(5))
    assert stage.forward_one_chunk(10) == 15


def test_an_object_that_has_gone_is_forgotten() -> None:
    stage = Stage()
    install_on(stage, "forward_one_chunk", adding(1))
    held = ref(stage)
    del stage
    gc.collect()
    assert held() is None
