"""One-sentence errors for the Hub: names, tokens, model cards, connections."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit
from urllib.request import getproxies

import datasets
from huggingface_hub import HfApi, ModelCard, constants, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import get_session, hf_raise_for_status, validate_repo_id

from .errors import UserError


try:
    from huggingface_hub.utils import httpx
except ImportError:  # before huggingface_hub 2
    import httpx

#: Exceptions of huggingface_hub and hf_xet: RuntimeError for a broken upload, ValueError for invalid metadata, and any
#: built-in exception from hf_xet.
RAISED = (httpx.HTTPError, OSError, RuntimeError, ValueError)
_LOGIN = "make one with write access at https://huggingface.co/settings/tokens and run `hf auth login`"

_METADATA = "the Hub refused the metadata at the head of README.md"


@contextmanager
def offline_without_network() -> Iterator[None]:
    """If the Hub's host name cannot be resolved, read from the cache at once instead of retrying for half a minute.

    With a proxy, the name need not be resolvable here.
    """
    found = True
    if not {"http", "https", "all"} & getproxies().keys():
        try:
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
        except OSError:
            found = False
    if found:
        yield
        return
    with patch.object(constants, "HF_HUB_OFFLINE", True), patch.object(datasets.config, "HF_HUB_OFFLINE", True):
        yield


def check_repo_id(repo_id: str) -> None:
    """Check the name of a repository."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(f"{repo_id!r} is not a name for a repository: {error}") from error


def check_token(token: str | None, repo_id: str, argument: str = "--token") -> str:
    """Return the token to push with, after checking that it has write access.

    Args:
        token: A token; the stored login by default.
        repo_id: The repository, for the message.
        argument: Name of the command line argument that takes a token, for the message.
    """
    token = token or get_token()
    if token is None:
        raise UserError(f"there is no Hub token to push {repo_id!r} with: {_LOGIN}, or give {argument}.")
    user: dict[str, Any] = HfApi(token=token).whoami()
    role = user.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":  # unknown for fine-grained tokens
        raise UserError(f"the Hub token of {user.get('name')!r} can only read, not write to {repo_id!r}: {_LOGIN}.")
    return token


def check_card(card: ModelCard | str, repo_type: str = "model") -> None:
    """Validate the metadata of a card on the Hub."""
    # Not `card.validate()`, because before huggingface_hub 2 it ignores HF_ENDPOINT.
    request = {"repoType": repo_type, "content": str(card)}
    response = get_session().post(f"{constants.ENDPOINT}/api/validate-yaml", json=request)
    if response.status_code != 400:
        hf_raise_for_status(response)
        return
    try:
        reason = " ".join(entry["message"] for entry in response.json()["errors"])
    except (ValueError, LookupError, TypeError):
        reason = response.text
    raise UserError(f"{_METADATA}: {_one_line(reason)}.")


def explain(error: BaseException, repo_id: str, again: str = "try again") -> str | None:
    """Describe the cause of an error and what to do, as a sentence without full stop.

    Args:
        error: The exception.
        repo_id: The repository.
        again: What to do after a lost connection.

    Returns:
        `None` if the error does not come from huggingface_hub.
    """
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    if not any(map(_from_the_hub, causes)):
        return None
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so nothing can be sent"
    status = next((cause.response.status_code for cause in causes if isinstance(cause, HfHubHTTPError)), None)
    # A PermissionError from hf_xet has no errno, unlike one from the file system.
    refused_by_storage = isinstance(error, PermissionError) and error.errno is None
    if status in (401, 403) or refused_by_storage or isinstance(error, LocalTokenNotFoundError):
        number = f" (status {status})" if status else ""
        return f"the Hub refused the token for {repo_id!r}{number}: {_LOGIN}"
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return (
            f"the Hub has no repository {repo_id!r}, or none that this token may see: check the name, or push "
            "without a pull request first, which makes it"
        )
    if str(error).startswith("Invalid metadata in README.md"):
        return f"{_METADATA}: {_one_line(' '.join(str(error).splitlines()[1:]).removeprefix('- '))}"
    lost = next((cause for cause in causes if isinstance(cause, (httpx.TransportError, ConnectionError))), None)
    if lost is not None or (status or 0) >= 500:
        return (
            f"the connection to the Hub was lost ({_one_line(lost or error)}), and a commit arrives whole or not at "
            f"all: {again}"
        )
    return f"the Hub did not take {repo_id!r} ({_one_line(error)}): {again}"


def _one_line(error: BaseException | str) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _from_the_hub(error: BaseException) -> bool:
    """Whether an exception passed through huggingface_hub, unlike one from writing a file."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("huggingface_hub."):
            return True
        trace = trace.tb_next
    return False


@contextmanager
def report_hub_errors(repo_id: str, kept: str, again: str = "try again") -> Iterator[None]:
    """Turn errors of the Hub's client into a `UserError`.

    Args:
        repo_id: The repository.
        kept: A sentence that says what is not affected.
        again: What to do after a lost connection.
    """
    try:
        yield
    except RAISED as error:
        message = explain(error, repo_id, again)
        if message is None:
            raise
        raise UserError(f"{message}. {kept}") from error
