"""A sign belongs to who was there: properties over random jobs, ends and signs of one node."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep_outcomes.attribution import LATE_SECONDS, Presence, SignOrigin, find_owners

GPUS = ("GPU-a", "GPU-b")
TIMES = st.integers(0, 200).map(float)


@st.composite
def presences(draw: st.DrawFn) -> list[Presence]:
    """Ranks of jobs that follow and overlap each other, running or ended, on two GPUs."""
    found = []
    for number in range(draw(st.integers(0, 6))):
        begin, lasts = draw(TIMES), draw(st.none() | st.integers(1, 60))
        found.append(
            Presence(
                job_id=f"job-{number % 3}",
                attempt=number // 3,
                rank=number,
                begin=begin,
                end=None if lasts is None else begin + lasts,
                pid=draw(st.just(100 + number) | st.none()),
                device=draw(st.sampled_from(GPUS)),
            )
        )
    return found


@st.composite
def signs(draw: st.DrawFn) -> SignOrigin:
    """One sign: of a process, a GPU, both, or of the whole node."""
    device = draw(st.sampled_from((*GPUS, None)))
    return SignOrigin(
        times=(draw(TIMES),),
        pid=draw(st.none() | st.integers(100, 107)),
        devices=None if device is None else frozenset({device}),
    )


@given(presences(), signs())
def test_a_sign_belongs_to_who_was_there_and_to_nobody_else(
    ranks: list[Presence], sign: SignOrigin
) -> None:
    owners, (time,) = find_owners(sign, ranks), sign.times
    for owner in owners:
        assert owner.begin <= time
        assert owner.end is None or time <= owner.end + LATE_SECONDS
        assert sign.devices is None or owner.device in sign.devices
    named = [owner for owner in owners if owner.pid == sign.pid]
    if sign.pid is not None and named:
        assert owners == named
    if sign.pid is not None and sign.devices is None:
        assert owners == named
    # Who runs at that moment comes before who has just ended.
    if any(owner.end is None or time <= owner.end for owner in owners):
        assert all(owner.end is None or time <= owner.end for owner in owners)


@given(presences(), signs())
def test_no_rank_that_ran_on_the_gpu_is_left_out(ranks: list[Presence], sign: SignOrigin) -> None:
    (time,) = sign.times
    running = [
        rank
        for rank in ranks
        if rank.begin <= time
        and (rank.end is None or time <= rank.end)
        and (sign.devices is None or rank.device in sign.devices)
    ]
    if sign.pid is None:
        assert running == [rank for rank in find_owners(sign, ranks) if rank in running]
    for rank in running:
        if sign.pid is not None and rank.pid == sign.pid:
            assert rank in find_owners(sign, ranks)
