"""How does the kernel ask? The only package that knows pyfuse3."""
