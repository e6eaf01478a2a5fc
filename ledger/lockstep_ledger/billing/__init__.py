"""Bills of a store: GPU time of its jobs as lines, costs, budgets and capacity."""
