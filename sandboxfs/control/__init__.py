"""How do programs ask? Finding, starting and ending what serves a sandbox."""
