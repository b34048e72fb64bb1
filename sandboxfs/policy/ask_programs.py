"""Programs that are asked: the command and the webhook that answer questions, as they are configured.

Both come from the user, by options or by the user's own configuration, and never from a project's files: what
answers for the user is not for untrusted content to choose. The command is a list of words that no shell
reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted


@dataclass(frozen=True)
class AskedPrograms:
    """The *command* and the *url* that are asked, empty and None where there are none.

    What is sent to the URL carries the token in *token_file*, where there is one.
    """

    command: tuple[str, ...] = ()
    url: str | None = None
    token_file: Path | None = None

    @property
    def any(self) -> bool:
        return bool(self.command or self.url)

    def given(self, command: str | None, url: str | None) -> "AskedPrograms":
        """Return who is asked where a command line names a *command* or a *url*: nobody else, then."""
        if command is None and url is None:
            return replace(self, token_file=self.token_file if self.url else None)
        try:
            words = () if command is None else command_words(command)
        except ValueError as error:
            raise UsageError(f"--ask-command: {error}") from error
        try:
            checked = None if url is None else checked_url(url)
        except ValueError as error:
            raise UsageError(f"--ask-url: {error}") from error
        return AskedPrograms(words, checked, None if checked is None else self.token_file)


def command_words(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command: a text is divided as a shell divides it, and nothing else is done.

    Raises ValueError with what was expected.
    """
    # Imported here, and below: most commands ask nobody.
    import shlex

    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise ValueError(f"expected a command, found {quoted(str(command))}: {error}") from error
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError(f"expected a command, found {quoted(shlex.join(words))}")
    return tuple(words)


def checked_url(url: str) -> str:
    """Return *url* if questions can be sent there; raise ValueError with what was expected."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
            and url.isascii()
            and url.isprintable()
            and " " not in url
            and not parts.fragment
        )
    except ValueError:
        usable = False
        parts = None
    if parts is not None and "@" in parts.netloc:
        # Not repeated: it would be a secret in a log.
        raise ValueError("expected a URL without a name and a password; a token comes from a file")
    if not usable:
        raise ValueError(f"expected a URL that starts with http:// or https://, found {quoted(url)}")
    return url
