"""Checkpoints on the Hugging Face Hub: the revisions of a repository.

address.py         hf://owner/name[@revision], and which revisions are meant
repository.py      what a repository has: revisions, files, their sizes and hashes
revision.py        one revision as a checkpoint: which files are its weights, fetched whole or read in place
claims.py          one process at a time for what is fetched
fetch.py           files on the disk: the user's cache, and what is fetched for the while
remote_file.py     a safetensors file read by HTTP range requests
faults.py          what goes wrong between here and there, in sentences

Everything goes through huggingface_hub: its cache, tokens, HF_ENDPOINT, HF_HUB_OFFLINE and back-off.
"""

from .address import SCHEME, Address, parse, revisions_meant
from .repository import Repository
from .revision import HubRevision

__all__ = ["SCHEME", "Address", "HubRevision", "Repository", "parse", "revisions_meant"]
