"""What does the sandbox see? The merged tree, copy-up, inodes and handles."""
