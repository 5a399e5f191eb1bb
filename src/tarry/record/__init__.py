"""Records of a run: event rows, checkpoints, the result. Every table, plot and page is made from them."""
