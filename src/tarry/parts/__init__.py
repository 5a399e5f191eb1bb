"""Pieces that methods are assembled from."""
