"""Runs, which make a Result from a Spec: build, run, resume, compare, replay."""
