"""The FUSE side: the kernel's requests and notifications. The only package that knows pyfuse3."""
