"""How does a Python program use sandboxes? `sandboxfs.Sandbox` and `sandboxfs.AsyncSandbox`."""
