"""sandboxfs: let any program work on a directory without changing it until a person says so."""

__version__ = "0.1.0"
