"""Turns scores, collectives, dumps and step times into a verdict, its episodes and its evidence."""
