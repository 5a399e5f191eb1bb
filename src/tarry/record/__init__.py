"""What a run leaves behind: rows, checkpoints, a result. Every table, plot and page is made from these."""
