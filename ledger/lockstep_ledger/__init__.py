"""What became of each job: durable outcomes, goodput and SLO counts; its service comes next."""
