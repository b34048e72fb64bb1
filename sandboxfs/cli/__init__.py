"""What does the user say? One module per verb."""
