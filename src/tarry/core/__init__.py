"""The nouns: layout, ticket, method, server, local rule, task, roster. Everything else is built on these."""
