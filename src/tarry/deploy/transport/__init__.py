"""Transport: messages travel in threads of their own, so that no client and no link delays the decisions."""
