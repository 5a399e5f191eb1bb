"""Core types: layout, ticket, method, server, local rule, task, idle clients. Everything else is built on these."""
