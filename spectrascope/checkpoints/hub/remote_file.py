"""A safetensors file on the Hub, read by HTTP range requests: the header first, then only the tensors asked for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

from ...arrays import Array, dtype_named
from ...errors import CheckpointError
from ...tensors import TensorInfo
from ..safetensors_file import DTYPES, LONGEST_HEADER, describe_entries, piece_of
from .faults import describe, is_of_the_connection
from .repository import HubFile

# The header of most models comes with the first request.
FIRST_BYTES = 2**17
# How often a body may break off without a byte having come.
MOST_BREAKS = 5


class RemoteSafetensors:
    """One `.safetensors` file of a commit; keeps the protocol of `Container`. Nothing of it is kept on the disk."""

    ordered = False

    def __init__(self, label: str, repository: str, commit: str, file: HubFile) -> None:
        self.path = Path(file.name)
        self._label = f"{label}/{file.name}"
        self._repository = repository
        self._size = file.size
        self._url = hf_hub_url(repository, file.name, revision=commit)
        self._lock = threading.Lock()

    def tensors(self) -> list[TensorInfo]:
        return describe_entries(self._entries)

    def load(self, name: str, index: int | None = None) -> Array:
        dtype, shape, begin, end = piece_of(self._label, name, self._entries[name], index)
        content = np.empty(end - begin, np.uint8)
        self._read(self._data_start + begin, content.data)
        return content.view(dtype).reshape(shape)

    def step(self) -> int | None:
        return None

    def files(self) -> list[Path]:
        return []

    @property
    def _entries(self) -> dict[str, dict[str, Any]]:
        with self._lock:
            return self._header[0]

    @property
    def _data_start(self) -> int:
        return self._header[1]

    @cached_property
    def _header(self) -> tuple[dict[str, dict[str, Any]], int]:
        """What the header says of every tensor, once found sound, and where their bytes begin."""
        start = bytearray(min(FIRST_BYTES, self._size))
        self._read(0, memoryview(start))
        length = int.from_bytes(start[:8], "little")
        if not 2 <= length <= min(LONGEST_HEADER, self._size - 8):
            raise CheckpointError(self._label, f"is not a safetensors file: a header of {length:,} bytes")
        rest = bytearray(max(0, 8 + length - len(start)))
        self._read(len(start), memoryview(rest))
        try:
            entries = json.loads((start + rest)[8 : 8 + length])
            entries.pop("__metadata__", None)
            room = self._size - 8 - length
            ends = sorted((one["data_offsets"][0], one["data_offsets"][1]) for one in entries.values())
            # One after the other without holes, up to the end of the file: as the library asks of whole files.
            sound = [0, *(end for _, end in ends)] == [*(begin for begin, _ in ends), room]
            sound = sound and all(_fits(one) for one in entries.values())
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise CheckpointError(self._label, f"is not a valid safetensors file ({type(error).__name__})") from error
        if not sound:
            raise CheckpointError(self._label, "is not a valid safetensors file: a tensor has another size than stated")
        return dict(sorted(entries.items())), 8 + length

    def _read(self, start: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `start` on; where the body breaks off, the rest is asked for again."""
        done = breaks = 0
        while done < len(target):
            before = done
            try:
                for piece in self._stream(start + done, start + len(target)):
                    target[done : done + len(piece)] = piece
                    done += len(piece)
            except CheckpointError:
                raise
            except Exception as error:  # of the client and of its HTTP library
                if breaks >= MOST_BREAKS or not is_of_the_connection(error):
                    raise CheckpointError(self._label, describe(error, self._repository)) from error
            if done == before:
                breaks += 1
                time.sleep(min(2.0**breaks / 2, 8.0))
                if breaks > MOST_BREAKS:
                    raise CheckpointError(self._label, "breaks off while it is fetched; the same command goes on")

    def _stream(self, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` up to `end`, as they come. The client waits and asks again after 429 and 5xx."""
        headers = build_hf_headers() | {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        # A body that breaks off must not be retried in there: half of it has been given out.
        with http_stream_backoff(
            "GET", self._url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, retry_on_exceptions=()
        ) as response:
            hf_raise_for_status(response)
            came = str(response.headers.get("Content-Range", ""))
            if response.status_code != 206 or not came.startswith(f"bytes {begin}-"):
                raise CheckpointError(self._label, "is served whole only; leave out --match, and it is fetched whole")
            left = end - begin
            for chunk in response.iter_bytes():
                yield chunk[:left]
                left -= len(chunk[:left])


def _fits(entry: dict[str, Any]) -> bool:
    """Whether a tensor has as many bytes as its shape and type say; of a type that is not read here, any."""
    dtype = dtype_named(DTYPES.get(str(entry["dtype"]), "unknown"))
    begin, end = entry["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (begin, end, *entry["shape"])):
        return False
    return dtype is None or prod(entry["shape"]) * dtype.itemsize == end - begin
