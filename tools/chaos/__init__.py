"""Chaos testing: commands of tarry that are killed, lose workers, disk and clocks, and whose files are damaged."""
