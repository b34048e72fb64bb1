"""What do the tests share? Trees to build and compare, drivers for the core and for a mount, probes."""
