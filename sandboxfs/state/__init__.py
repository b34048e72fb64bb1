"""The state directory: records of sandboxes, locks and the audit log."""
