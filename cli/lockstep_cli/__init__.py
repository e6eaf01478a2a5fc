"""The one command: finds the subcommands of the rooms and imports none before it is asked."""
