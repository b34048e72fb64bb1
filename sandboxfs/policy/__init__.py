"""What may be done? The user's configuration and, later, the rules."""
