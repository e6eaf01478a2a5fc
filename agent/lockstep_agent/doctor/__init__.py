"""``lockstep doctor``: is this node fit, judged from its readings and from measurements."""
