"""Archives: the changes of a sandbox as one file, written and read."""
