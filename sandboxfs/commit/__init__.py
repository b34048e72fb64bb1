"""Commit, discard and undo: plan, transaction, rollback and recovery. All changes come true, or none."""
