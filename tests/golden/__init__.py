"""Golden event traces: what a seed has always given, committed."""
