"""The server side of a federation: the driver loop, its journaled state, registration and deadlines."""
