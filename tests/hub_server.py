"""A small Hugging Face Hub on the loopback interface, and checkpoints to put on it.

The real client of `huggingface_hub` talks to it, in this process or in one started with `environment`:

    with Hub() as hub:
        commit = hub.add("org/model", "step1", {"config.json": b"{}", "model.safetensors": tmp_path / "weights"})
        hub.fault("GET /cdn/.*safetensors", cut(after_bytes=100), status(500))
        subprocess.run([sys.executable, "-m", ...], env=environment(hub, tmp_path / "home"))
        assert hub.bytes_of("GET /cdn/") < 5000

As on the real Hub, weights are in LFS: a request for them is redirected to a content delivery network, whose URLs
begin with `/cdn/` and which has a port of its own, because the client sends tokens and follows redirects of HEAD only
within one host and port. Other files are served directly.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

# The token that opens every repository.
TOKEN = "hf_good"
# Files with these endings are in LFS.
LARGE = (".safetensors", ".bin")
# /api/models/{repository}, with /refs, /revision/{revision} or /tree/{revision}/{folder} after it.
API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(refs|revision|tree)(?:/([^/]+))?(?:/(.+))?)?")
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
CDN = re.compile(r"/cdn/([^/]+/[^/]+)/([^/]+)/(.+)")


@dataclass(frozen=True)
class Fault:
    """What goes wrong with the answer to one request; the functions below make them."""

    code: int | None = None  # the status of an error that is answered instead
    headers: Mapping[str, str] = field(default_factory=dict)
    stop_after: int | None = None  # bytes of the body after which no more is sent; if negative, no header is
    hang: bool = False  # the connection stays open after that
    chunk: int = 1 << 16
    pause: float = 0.0  # seconds after each chunk
    whole: bool = False  # the header Range is ignored
    corrupt: bool = False  # the last byte of the body is wrong


def status(code: int, headers: Mapping[str, str] | None = None, error_code: str | None = None) -> Fault:
    """An error; the client chooses the exception by `error_code`, such as "EntryNotFound", if there is one."""
    return Fault(code=code, headers=dict(headers or {}) | ({"X-Error-Code": error_code} if error_code else {}))


def retry_after(seconds: int) -> Fault:
    """Too many requests, with every header that says when to come back."""
    limit = {"RateLimit": f'"resolvers";r=0;t={seconds}', "RateLimit-Policy": '"fixed window";"resolvers";q=3000;w=300'}
    return status(429, {"Retry-After": str(seconds), **limit})


def cut(after_bytes: int = -1) -> Fault:
    """The connection closes after so many bytes of the body, all of which was promised; if negative, unanswered."""
    return Fault(stop_after=after_bytes)


def stall(after_bytes: int = -1) -> Fault:
    """Nothing more comes after so many bytes of the body, and the connection stays open; if negative, no answer."""
    return Fault(stop_after=after_bytes, hang=True)


def slow(seconds_per_chunk: float, chunk: int) -> Fault:
    """The body comes in chunks of so many bytes, with a pause after each."""
    return Fault(chunk=chunk, pause=seconds_per_chunk)


def whole() -> Fault:
    """The whole file comes with status 200, whatever range of it was asked for: some proxies do so."""
    return Fault(whole=True)


def corrupt() -> Fault:
    """The last byte of the body is not that of the file: one of a tensor."""
    return Fault(corrupt=True)


@dataclass
class Request:
    """A request that the Hub has seen, and what became of it."""

    method: str
    path: str  # with the query, unquoted
    range: str | None
    token: str | None
    status: int = 0  # 0 while it is unanswered
    sent: int = 0  # bytes of the body given to the connection, of which the client need not have read all

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class File:
    """A file of a revision."""

    content: bytes | Path
    size: int
    blob: str  # its object in Git, which is a pointer if it is in LFS
    lfs: dict[str, Any] | None

    @classmethod
    def of(cls, name: str, content: bytes | Path) -> File:
        with _open(content) as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            if not name.endswith(LARGE):
                return cls(content, size, _blob(stream.read()), None)
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
        return cls(content, size, _blob(pointer), {"oid": sha256, "size": size, "pointerSize": len(pointer)})

    @property
    def etag(self) -> str:
        return f'"{self.lfs["oid"] if self.lfs else self.blob}"'


@dataclass
class Repository:
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    gated: bool = False
    hidden: bool = False


@dataclass
class Answer:
    """An answer before faults: ranges of it are served if it is a file's."""

    status: int
    content: bytes | Path
    headers: dict[str, str] = field(default_factory=dict)


class Hub:
    """A Hub at `endpoint` that serves what is added, keeps every request, and fails where told to."""

    def __init__(self, page: int = 1000) -> None:
        """A listing of files comes in pages of `page`."""
        self.page = page
        self.requests: list[Request] = []
        self.repositories: dict[str, Repository] = {}
        self.closing = threading.Event()
        self._faults: list[tuple[re.Pattern[str], str | None, Iterator[Fault]]] = []
        self._lock = threading.Lock()
        self._servers = [_Server(self), _Server(self)]
        self.endpoint, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def __enter__(self) -> Hub:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for server in self._servers:
            server.close()

    def add(self, repository: str, revision: str, files: Mapping[str, bytes | Path], *, tag: bool = False) -> str:
        """Commit these files, and no others, to a branch or tag, which is made or moved; the commit's hash."""
        tree = {name: File.of(name, content) for name, content in sorted(files.items())}
        contents = json.dumps([repository, revision, [(name, file.blob) for name, file in tree.items()]])
        commit = hashlib.sha1(contents.encode()).hexdigest()
        known = self.repositories.setdefault(repository, Repository())
        known.commits[commit] = tree
        (known.tags if tag else known.branches)[revision] = commit
        return commit

    def name(self, repository: str, revision: str, commit: str) -> None:
        """One more branch at a commit."""
        self.repositories[repository].branches[revision] = commit

    def commit_of(self, repository: str, revision: str) -> str:
        """The commit that a branch is at."""
        return self.repositories[repository].branches[revision]

    def gate(self, repository: str) -> None:
        """From now on anyone may list its files, but only who sends `TOKEN` may have them."""
        self.repositories[repository].gated = True

    def hide(self, repository: str) -> None:
        """From now on it looks absent to who does not send `TOKEN`."""
        self.repositories[repository].hidden = True

    def fault(self, pattern: str, *faults: Fault, method: str | None = None, always: bool = False) -> None:
        """Give these faults to the next requests of which `pattern` is found in "METHOD path", one to each.

        With `always`, the last of them goes on until `heal`. Faults that were added first are used up first. The
        client asks for HEAD before it downloads, and for weights at two addresses, which all count unless excluded.
        """
        queue = itertools.chain(faults, itertools.repeat(faults[-1]) if always else ())
        with self._lock:
            self._faults.append((re.compile(pattern), method, queue))

    def heal(self) -> None:
        """Forget the faults that have not happened yet."""
        with self._lock:
            self._faults.clear()

    def matching(self, pattern: str) -> list[Request]:
        """The requests of which `pattern` is found in "METHOD path"."""
        return [request for request in self.requests.copy() if re.search(pattern, str(request))]

    def bytes_of(self, pattern: str) -> int:
        """How many bytes of bodies were sent to these requests."""
        return sum(request.sent for request in self.matching(pattern))

    def _next_fault(self, request: Request) -> Fault:
        with self._lock:
            for pattern, method, queue in self._faults:
                if method in (None, request.method) and pattern.search(str(request)):
                    for fault in queue:
                        return fault
        return Fault()

    def _answer(self, target: str, token: str | None) -> Answer:
        """What the Hub says to GET, of which HEAD gets the headers."""
        url = urlsplit(target)
        if found := CDN.fullmatch(url.path):
            repository, revision, path = map(unquote, found.groups())
            file = self.repositories[repository].commits[revision][path]
            return Answer(200, file.content, {"ETag": file.etag, "Accept-Ranges": "bytes"})
        kind = "resolve"
        if found := RESOLVE.fullmatch(url.path):
            repository, revision, path = map(unquote, found.groups())
        elif found := API.fullmatch(url.path):
            repository, kind, revision, path = (unquote(group or "") for group in found.groups())
        else:
            return _error(404, None, "Sorry, we can't find the page you are looking for.")

        known = self.repositories.get(repository)
        if known is None or (known.hidden and token != TOKEN):
            if token is None:
                return _error(401, "RepoNotFound", "Invalid username or password.")
            return _error(404, "RepoNotFound", "Repository not found")
        if kind == "refs":
            refs = {
                kind: [
                    {"name": name, "ref": f"refs/{folder}/{name}", "targetCommit": commit}
                    for name, commit in sorted(commits.items())
                ]
                for kind, folder, commits in (("branches", "heads", known.branches), ("tags", "tags", known.tags))
            }
            return _json({**refs, "converts": [], "pullRequests": []})
        if kind == "resolve" and known.gated and token != TOKEN:
            message = f"Access to model {repository} is restricted"
            return _error(401 if token is None else 403, "GatedRepo", f"{message} and you are not in its list.")
        revision = revision or "main"
        commit = known.branches.get(revision) or known.tags.get(revision) or revision
        files = known.commits.get(commit)
        if files is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if kind == "resolve":
            return self._resolve(repository, commit, path, files)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if kind == "tree":
            return self._tree(url.path, query, path, files)
        siblings: list[dict[str, Any]] = [{"rfilename": name} for name in files]
        if query.get("blobs") == "true":
            for sibling, file in zip(siblings, files.values(), strict=True):
                sibling |= {"size": file.size, "blobId": file.blob}
                if file.lfs:
                    sibling["lfs"] = {"sha256": file.lfs["oid"], **file.lfs}
        gated = "manual" if known.gated else False
        return _json({"id": repository, "sha": commit, "private": known.hidden, "gated": gated, "siblings": siblings})

    def _resolve(self, repository: str, commit: str, path: str, files: dict[str, File]) -> Answer:
        if path not in files:
            answer = _error(404, "EntryNotFound", "Entry not found")
            answer.headers["X-Repo-Commit"] = commit
            return answer
        file = files[path]
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if file.lfs is None:
            return Answer(200, file.content, headers | {"ETag": file.etag})
        headers |= {"X-Linked-Size": str(file.size), "X-Linked-ETag": file.etag}
        headers["Location"] = f"{self.cdn}/cdn/{repository}/{commit}/{quote(path)}"
        return Answer(302, f"Found. Redirecting to {headers['Location']}".encode(), headers)

    def _tree(self, path: str, query: dict[str, str], folder: str, files: dict[str, File]) -> Answer:
        prefix = f"{folder}/" if folder else ""
        entries: dict[str, dict[str, Any]] = {}
        for name, file in files.items():
            if not name.startswith(prefix):
                continue
            parts = name.removeprefix(prefix).split("/")
            for depth in range(1, (len(parts) if query.get("recursive") == "true" else 1) + 1):
                entry = prefix + "/".join(parts[:depth])
                entries[entry] = {"type": "directory", "oid": _blob(entry.encode()), "size": 0, "path": entry}
                if entry == name:
                    entries[entry] |= {"type": "file", "oid": file.blob, "size": file.size}
                    entries[entry] |= {"lfs": file.lfs} if file.lfs else {}
        if folder and not entries:
            return _error(404, "EntryNotFound", f"{folder} does not exist")
        start = int(query.get("cursor", 0))
        stop = start + self.page
        answer = _json([entries[name] for name in sorted(entries)[start:stop]])
        if stop < len(entries):
            following = "&".join(f"{name}={value}" for name, value in {**query, "cursor": stop}.items())
            answer.headers["Link"] = f'<{self.endpoint}{path}?{following}>; rel="next"'
        return answer


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        self.connections: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up as they please, and the end of a test on them; an error of ours is printed."""
        if not self.hub.closing.is_set() and not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Stop listening, and end the connections that clients keep for later."""
        self.shutdown()
        self.server_close()
        for connection in self.connections.copy():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        request = Request(self.command, unquote(self.path), self.headers.get("Range"), token)
        self.server.hub.requests.append(request)
        fault = self.server.hub._next_fault(request)
        if fault.code is not None:
            answer = _error(fault.code, None, f"Error {fault.code} for this test")
            answer.headers.update(fault.headers)
        else:
            answer = self.server.hub._answer(self.path, token)
        with suppress(ConnectionError), _open(answer.content) as stream:
            if self._send(request, answer, stream, fault):
                return
        self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _send(self, request: Request, answer: Answer, stream: io.BufferedIOBase, fault: Fault) -> bool:
        """Whether the answer was sent in full."""
        size = stream.seek(0, io.SEEK_END)
        code, start, stop = answer.status, 0, size
        if code == 200 and "Accept-Ranges" in answer.headers and request.range and not fault.whole:
            start, stop = _span(request.range, size)
            code = 206 if start < stop else 416
            answer.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}" if start < stop else f"bytes */{size}"
        end = stop if fault.stop_after is None else min(stop, start + fault.stop_after)
        if end >= start:
            request.status = code
            self.send_response(code)
            for name, value in {**answer.headers, "Content-Length": str(stop - start)}.items():
                self.send_header(name, value)
            self.end_headers()
        stream.seek(start)
        while start < end and self.command == "GET":
            chunk = stream.read(min(fault.chunk, end - start))
            if fault.corrupt and start + len(chunk) == stop:
                chunk = chunk[:-1] + bytes([chunk[-1] ^ 1])
            start += len(chunk)
            request.sent += len(chunk)
            self.wfile.write(chunk)
            self.server.hub.closing.wait(fault.pause)
        if fault.hang and end < stop:
            self.server.hub.closing.wait()
        return end == stop


def _open(content: bytes | Path) -> io.BufferedIOBase:
    return content.open("rb") if isinstance(content, Path) else io.BytesIO(content)


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _span(header: str, size: int) -> tuple[int, int]:
    """The first byte of a range, and the one after its last; it is empty if there is none."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return max(size - int(last), 0), size
    start = min(int(first), size)
    return (start, max(start, min(int(last) + 1, size))) if last else (start, size)


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _error(code: int, error_code: str | None, message: str) -> Answer:
    headers = {"X-Error-Message": message.encode("ascii", "replace").decode()}
    if error_code:
        headers["X-Error-Code"] = error_code
    return Answer(code, json.dumps({"error": message}).encode(), {"Content-Type": "application/json", **headers})


def environment(hub: Hub, home: Path, **more: str) -> dict[str, str]:
    """The environment of a process for which this is the Hub: its cache is in `home`, and it has no token."""
    ours = ("HF_", "HUGGING", "TRANSFORMERS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    client = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**kept, **client, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **more}


def write_revisions(
    folder: Path, steps: Sequence[int], seed: int = 0, shard: bool = False, safe: bool = True
) -> dict[str, dict[str, bytes | Path]]:
    """The files of a tiny GPT-NeoX as saved at each step, by revision ("step1") and name, to be added to a Hub.

    With `shard` the weights are in several files and an index; if not `safe` they are pickled, as they once were.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = GPTNeoXForCausalLM(config)
    weights = model.state_dict()
    start = {name: tensor.clone() for name, tensor in weights.items()}
    revisions: dict[str, dict[str, bytes | Path]] = {}
    for step in steps:
        random = torch.Generator().manual_seed(1000003 * seed + step)
        for name, tensor in weights.items():
            tensor.copy_(start[name] + 0.02 * step**0.5 * torch.randn(tensor.shape, generator=random))
        target = folder / f"step{step}"
        model.save_pretrained(target, max_shard_size="30KB" if shard else "1GB")
        for path in [] if safe else list(target.glob("model*")):
            pickled = target / f"pytorch_{path.name}".replace(".safetensors", ".bin")
            if path.suffix == ".json":
                index = path.read_text().replace('"model-', '"pytorch_model-').replace(".safetensors", ".bin")
                pickled.write_text(index)
            else:
                torch.save(load_file(path), pickled)
            path.unlink()
        revisions[target.name] = {path.name: path for path in sorted(target.iterdir())}
    return revisions
