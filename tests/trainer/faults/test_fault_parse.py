from pathlib import Path

import pytest

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.faults.kind import Fault
from lockstep_trainer.faults.parse import check_faults, faults_of, parse_all
from lockstep_trainer.layout.world import Layout, World


def faults(*texts: str, seed: int = 0) -> tuple[Fault, ...]:
    return parse_all(TrainConfig(steps=50, fault=texts, fault_seed=seed), 4)


def test_a_fault_is_in_one_step_of_the_first_attempt_by_default() -> None:
    (fault,) = faults("kill:rank=2,step=7")
    assert [step for step in range(1, 51) if fault.is_due(step)] == [7]
    assert fault.concerns(2, 0)
    assert not fault.concerns(2, 1)
    assert not fault.concerns(1, 0)


def test_ranks_and_steps_left_to_chance_depend_on_the_seed_alone() -> None:
    drawn = {
        seed: faults("kill:rank=any,step=10..40", "stop:rank=any,step=any", seed=seed)
        for seed in range(20)
    }
    again = faults("kill:rank=any,step=10..40", "stop:rank=any,step=any", seed=7)
    assert drawn[7] == again
    assert {kill.rank for kill, _ in drawn.values()} == {0, 1, 2, 3}
    assert len({kill.step for kill, _ in drawn.values()}) > 10
    assert all(10 <= kill.step <= 40 and 1 <= stop.step <= 50 for kill, stop in drawn.values())


def test_a_fault_of_all_attempts_concerns_its_rank_alone_and_one_of_all_ranks_each() -> None:
    slow = TrainConfig(fault=("slow-loader:rank=1,step=3,until=9,delay=250ms,attempt=all",))
    (fault,) = faults_of(slow, World(rank=1, size=2, attempt=3))
    assert fault == Fault(kind="slow-loader", rank=1, step=3, until=9, values={"delay": 0.25})
    assert faults_of(slow, World(rank=0, size=2)) == ()
    (nan,) = faults_of(TrainConfig(fault=("nan-loss:rank=all,step=2",)), World(rank=1, size=2))
    assert (nan.kind, nan.step, nan.until) == ("nan-loss", 2, 3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("boom:rank=0,step=1", "'boom' is not a kind of fault; the kinds are slow-loader, "),
        ("kill:rank=4,step=1", "rank 4 is outside the world of 4 ranks; they run from 0 to 3"),
        ("kill:rank=0,step=51", "step 51 is outside the run; its steps are 1 to 50"),
        ("kill:rank=0,step=40..60", "step 40..60 is outside the run; its steps are 1 to 50"),
        ("kill:rank=0,step=0", "step 0 is outside the run"),
        ("kill:rank=0,speed=3", "kill has no 'speed'; it has rank, step, until, attempt"),
        ("kill:step=3", "rank is missing; give a number, any or all"),
        ("kill:rank=0", "step is missing; give a number, a range such as 10..20, or any"),
        ("kill:rank=-1,step=3", "rank '-1' is not a whole number"),
        ("kill:rank=0,step=3,until=3", "until 3 must be above step 3, or end"),
        ("stop:rank=0,step=3,duration=nan", "duration nan must be a duration in 100ms..1h"),
        ("stop:rank=0,step=3,duration", "duration  must be a duration in 100ms..1h"),
        ("stop:rank=0,step=3,duration=5", "duration 5 must be a duration in 100ms..1h"),
        ("diverge:rank=0,step=3,factor=nan", "factor nan must be a number in 0..1000000000"),
        ("oom:rank=0,step=3,mib=1.5", "mib 1.5 must be a whole number in 1..1048576"),
        ("wrong-rank:rank=0,step=3,value=1", "wrong-rank has no 'step'"),
        ("wrong-rank:rank=0", "wrong-rank needs value=0..1000000"),
        ("kill:rank=0,rank=1,step=1", "rank=1 and rank=0; give one"),
        ("", "'' is not a kind of fault"),
    ],
)
def test_an_invalid_fault_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="--fault") as raised:
        faults(text)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "layout", "sentence"),
    [
        ("corrupt-checkpoint:rank=0,step=2", Layout(world_size=2, dp=2), "--checkpoint-dir"),
        ("skewed-shards:rank=0,step=2", Layout(world_size=2, pp=2), "with --pp above 1"),
        ("unbalanced-stage:rank=0,step=2", Layout(world_size=2, tp=2), "with --tp above 1"),
        ("unbalanced-experts:rank=0,step=2", Layout(world_size=2, dp=2), "it needs --experts"),
        ("slow-network:rank=0,step=2", Layout(world_size=2, dp=2), "network namespaces"),
    ],
)
def test_a_fault_beside_the_run_is_refused(text: str, layout: Layout, sentence: str) -> None:
    with pytest.raises(ValueError, match="cannot be in this run") as raised:
        check_faults(TrainConfig(fault=(text,)), layout)
    assert sentence in str(raised.value)


def test_a_large_disk_is_not_filled() -> None:
    config = TrainConfig(fault=("full-disk:rank=0,step=2",), checkpoint_dir=Path("/"))
    with pytest.raises(ValueError, match="mount one of 256 MiB or less there"):
        check_faults(config, Layout(world_size=1))
