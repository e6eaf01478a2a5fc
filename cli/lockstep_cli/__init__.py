"""The one command: finds the components' subcommands, imports each when it is called."""
