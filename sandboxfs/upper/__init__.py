"""The upper: overlay marks, baselines, and upper entries reached by path."""
