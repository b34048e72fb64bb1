"""Host access by directory descriptor, following no link: the one door to the host."""
