"""What is checked before rules are used: their cost, chance, and the tools' own checks."""
