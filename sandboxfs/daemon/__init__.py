"""The daemon: one process serves one sandbox at one mount."""
