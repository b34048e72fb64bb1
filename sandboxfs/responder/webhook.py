"""Webhook: a question posted to a web address, and the answer in the response.

Only http and https are spoken, no redirect is followed, and whatever is not a whole response of a status of
success is no answer. A sentence about what went wrong has no word of the server's in it, and none of the
address: it is told to the program in the view.
"""

import os
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from pathlib import Path
from ssl import SSLError
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    getproxies,
)

from sandboxfs import __version__
from sandboxfs.errors import UsageError
from sandboxfs.responder.answer_object import ANSWER_SIZE, NoAnswer
from sandboxfs.service.responder import read_token

# Seconds for one step. The whole is ended from outside when the question is over.
_PATIENCE = 600.0


def post(url: str, token_file: Path | None, question: bytes) -> bytes:
    """Post *question* to *url* and return the response; raise `NoAnswer` unless it is one of success."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "User-Agent": f"sandboxfs/{__version__}",
    }
    if token_file is not None:
        try:
            headers["Authorization"] = f"Bearer {read_token(token_file)}"
        except UsageError as error:
            raise NoAnswer("was not asked: its token cannot be read") from error
    try:
        response = _opener(url).open(Request(url, question, headers, method="POST"), timeout=_PATIENCE)  # noqa: S310 - checked when configured
        if not isinstance(response, HTTPResponse):
            raise NoAnswer("cannot be asked")
        with response:
            return _answer(response)
    except TimeoutError as error:
        raise NoAnswer("did not answer in time") from error
    except URLError as error:
        raise NoAnswer(f"cannot be reached: {_why(error.reason)}") from error
    except OSError as error:
        raise NoAnswer(f"broke off: {_why(error)}") from error
    except (HTTPException, ValueError) as error:
        raise NoAnswer("gave a malformed response") from error


def _why(error: object) -> str:
    """Say what is wrong with a connection, without what the server or its certificate says."""
    if isinstance(error, SSLError):
        return "no connection that can be trusted"
    return (error.strerror if isinstance(error, OSError) else None) or "no connection"


def _answer(response: HTTPResponse) -> bytes:
    if not 200 <= response.status <= 299:
        raise NoAnswer(f"answered with status {response.status}")
    text = response.read(ANSWER_SIZE + 1)
    if len(text) > ANSWER_SIZE:
        raise NoAnswer(f"answered with more than {ANSWER_SIZE >> 10} KiB")
    if response.length:
        raise NoAnswer("broke off")
    return text


def _opener(url: str) -> OpenerDirector:
    """Return what posts and nothing else: whatever is answered comes back as it is."""
    proxies = {} if is_loopback(urlsplit(url).hostname or "") else getproxies()
    opener = OpenerDirector()
    for handler in (ProxyHandler(proxies), HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    return opener


def is_loopback(host: str) -> bool:
    """Whether *host* is this machine by name or number."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def take_environment(environment: dict[str, str]) -> None:
    """Use the proxies and certificates that *environment* names."""
    os.environ.clear()
    os.environ.update(environment)
