"""What goes wrong between here and the Hub, in sentences that say the way out."""

from __future__ import annotations

from huggingface_hub import constants
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

OFFLINE = "is not in the cache, and HF_HUB_OFFLINE forbids fetching it"


def describe(error: BaseException, repository: str) -> str:
    """Why something of a repository cannot be had, as the end of a sentence that begins with its address."""
    if isinstance(error, GatedRepoError):
        page = f"{constants.ENDPOINT}/{repository}"
        return f"is gated: accept its terms at {page}, then `hf auth login`, or set HF_TOKEN"
    if isinstance(error, DisabledRepoError):
        return "has been disabled on the Hub"
    if isinstance(error, RepositoryNotFoundError):
        return "is not on the Hub, or is private: check the name, or `hf auth login`, or set HF_TOKEN"
    if isinstance(error, RevisionNotFoundError):
        return "has no such revision; `spectrascope show` with --revisions '*' lists them"
    if isinstance(error, OfflineModeIsEnabled):
        return OFFLINE
    if isinstance(error, RemoteEntryNotFoundError):
        return "lacks a file that was there when it was listed; run the command again"
    if isinstance(error, HFValidationError):
        return "is not a name that a repository can have"
    if isinstance(error, HfHubHTTPError):
        return _of_status(error.response.status_code)
    cause = error.__cause__
    if isinstance(error, LocalEntryNotFoundError) and cause is not None:
        return describe(cause, repository)  # the client wraps what kept it from asking
    first_line = (str(error).strip().splitlines() or [""])[0][:200]
    what = f"{type(error).__name__}: {first_line}"
    return f"cannot be fetched from {constants.ENDPOINT} ({what}); the same command goes on"


def _of_status(status: int) -> str:
    if status == 429:
        return "cannot be fetched now: the Hub limits the rate of requests; wait, log in with `hf auth login`, go on"
    if status in (401, 403):
        return f"may not be read with this token (HTTP {status}); `hf auth login`, or set HF_TOKEN"
    return f"cannot be fetched: {constants.ENDPOINT} answers HTTP {status}; the same command goes on"


def is_of_the_connection(error: BaseException) -> bool:
    """Whether nothing answered, or an answer broke off, so that asking again may help."""
    return not isinstance(error, (OfflineModeIsEnabled, HfHubHTTPError))


def may_pass(error: BaseException) -> bool:
    """Whether the client gave up at once on what may pass: an answer of the server that it failed, or none.

    What it gave up after asking several times is a LocalEntryNotFoundError, or broke off again and again.
    """
    status = getattr(getattr(error, "response", None), "status_code", None)
    return (status is not None and status >= 500) or type(error).__name__ == "RemoteProtocolError"
