"""What wakes us: a written spec becomes rules, routes, rule tests, and the stack that runs them."""
