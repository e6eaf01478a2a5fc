"""Burn rates of GPU-seconds that can be reached at an objective, and what they mean.

A budget burns at most 1 / (1 - objective) times as fast as allowed: all of the time is bad. Rules
ask for four fifths of that at most. A cell is the rate of the usual table, or the most that is
feasible, the share of good time below which it fires, and the share of 28 days' budget that is gone
after the window.
"""

from lockstep_alerts.objectives.objective import BurnLimit, feasible_burn_rate
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

OBJECTIVES = (0.99, 0.95, 0.93, 0.9, 0.85, 0.8)


def cell(limit: BurnLimit, good_ratio: float) -> str:
    """Rate, share of good time, share of the budget; marked where the usual rate is refused."""
    most = feasible_burn_rate(1 - good_ratio)
    is_feasible = limit.burn_rate <= most
    rate = limit.burn_rate if is_feasible else most
    used = BurnLimit(window=limit.window, recent=limit.recent, burn_rate=rate)
    text = f"{rate:.3g}x: below {1 - used.bad_share(1 - good_ratio):.1%}, {used.budget_share():.1%}"
    return text if is_feasible else f"{text} (refused: {limit.burn_rate:g}x)"


def main() -> None:
    """Prints the table."""
    windows = read_spec(spec_path()).objective_windows
    limits = (*windows.gpu_second_page, *windows.gpu_second_ticket)
    titles = (f"{limit.window} and {limit.recent}" for limit in limits)
    print(f"| objective, largest rate | {' | '.join(titles)} |")
    print(f"| --- |{' --- |' * len(limits)}")
    for good_ratio in OBJECTIVES:
        cells = (cell(limit, good_ratio) for limit in limits)
        print(f"| {good_ratio:.0%}, {1 / (1 - good_ratio):.3g}x | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
