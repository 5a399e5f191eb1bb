"""Executors, which train tickets: one by one, in processes, in stacks on one device, on a Ray cluster."""
