"""The command line: one file a command, all reading flags the same way."""
