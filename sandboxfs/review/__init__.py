"""Review: the changes of a sandbox, found, compared, merged, flagged and shown."""
