"""A whole federation on one machine: processes, TLS files, submission."""
