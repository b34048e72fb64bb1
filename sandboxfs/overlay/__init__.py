"""The view that the sandbox sees: the merged tree, copy-up, inodes and handles."""
