"""tarry: asynchronous federated learning that makes stragglers count."""

__version__ = "0.1.0"
