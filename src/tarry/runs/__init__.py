"""From a Spec to a Result: build, run, resume, compare, replay."""
