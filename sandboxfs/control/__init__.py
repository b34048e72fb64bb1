"""Control of a daemon: messages, the client, and starting a daemon."""
