"""Stacked training: clients in flight are traced once and trained together under vmap."""
