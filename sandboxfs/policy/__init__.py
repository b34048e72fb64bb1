"""What may be done? Rules, how they are decided, and the configuration they come from."""
