"""Tuning: trials of every method over its search space, and comparisons with the settings that were found."""
