"""Which sandboxes exist? Records, locks and the places they live in."""
