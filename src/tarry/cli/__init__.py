"""The command line: a table of commands, and one file for each command."""
