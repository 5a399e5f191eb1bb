"""What happens at an instant of a run: arrivals, dispatch, budgets, counters. Knows no clock and no network."""
