"""Lockstep: phases and page, the wrapped backward, and a whole watched step."""

import torch
from pairs import page_root, pairs_a_round, run_pairs, write_pairs
from steps import Small

import lockstep

_TEN = (
    "data",
    "forward",
    "backward",
    "sync",
    "other",
    "optimizer",
    "data",
    "eval",
    "other",
    "data",
)


def _monitor(name: str, small: Small | None = None, *, optimizer: bool = False) -> lockstep.Monitor:
    monitor = lockstep.attach(
        small.model if small else None,
        small.optimizer if small and optimizer else None,
        root=page_root(),
        environment={"LOCKSTEP_JOB_ID": f"bench-{name}"},
    )
    assert monitor.enabled, "the bench needs a tmpfs at /dev/shm"
    return monitor


def _ten_phases(monitor: lockstep.Monitor) -> None:
    for name in _TEN:
        monitor.enter_phase(name)
    monitor.step(loss=1.5, tokens=1024, samples=8, gradient_norm=0.7, learning_rate=1e-3)


def _create_with_empty_hook() -> Small:
    """A model with an empty forward hook: what torch itself takes for one."""
    small = Small.fresh()
    small.model.register_forward_pre_hook(lambda *_: None)
    return small


def main() -> None:
    """Measures, and writes the pairs."""
    torch.set_num_threads(1)
    pairs = pairs_a_round()
    off, on = lockstep.disabled(), _monitor("ten")
    hooked, with_backward = _create_with_empty_hook(), Small.fresh()
    bare, fully_watched = Small.fresh(), Small.fresh()
    _monitor("backward", with_backward)
    monitor = _monitor("whole", fully_watched, optimizer=True)

    def watched() -> None:
        fully_watched.step()
        monitor.step(loss=1.5, tokens=1024, samples=8)

    write_pairs(
        {
            "ten phases": run_pairs(
                lambda: _ten_phases(off), lambda: _ten_phases(on), pairs=pairs, num_steps=2000
            ),
            "backward": run_pairs(hooked.step, with_backward.step, pairs=pairs, num_steps=300),
            "step": run_pairs(bare.step, watched, pairs=pairs, num_steps=300),
        }
    )


if __name__ == "__main__":
    main()
