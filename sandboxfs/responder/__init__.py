"""The responder: one process beside a daemon asks a command or a webhook about the questions of a session."""
