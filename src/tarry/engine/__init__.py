"""Event engine: what happens at an instant of a run. It knows no clock and no network."""
