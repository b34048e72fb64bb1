"""What did it do? Diffs, hunks, patches, merges, and what to look at twice."""
