"""Rules: the PromQL of recorded series, areas with a rule file each, and the groups in them."""
