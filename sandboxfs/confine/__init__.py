"""How is a program kept in? Bubblewrap, Landlock where that is not allowed, and what is seen inside."""
