"""Checkpoints on the Hub: the real client against a server on the loopback interface, with what goes wrong there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Result, assert_plain
from hub_server import TOKEN, Hub, corrupt, cut, environment, retry_after, slow, stall, status, whole, write_revisions
from huggingface_hub import constants, hf_hub_download

import spectrascope

REPOSITORY = "org/tiny"
ADDRESS = f"hf://{REPOSITORY}"
STEPS = (0, 1, 2, 4, 1000)
DENSE = "gpt_neox.layers.1.attention.dense.weight"
# The weights come from there; the addresses of the Hub itself only lead to them.
WEIGHTS = "GET /cdn/.*model"


@pytest.fixture(scope="session")
def revisions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return write_revisions(tmp_path_factory.mktemp("revisions"), STEPS)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def hub(revisions: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with the tiny revisions, which the client of this process talks to; it waits for nothing."""
    monkeypatch.chdir(tmp_path)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))
    with Hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        url = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(home / "assets"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        for name, files in revisions.items():
            hub.add(REPOSITORY, name, files)
        hub.add(REPOSITORY, "main", revisions["step1000"])
        yield hub
        for thread in threading.enumerate():  # what is fetched ahead still talks to this Hub
            if thread.name.startswith("spectrascope-fetch"):
                thread.join(30)


@pytest.fixture
def analyze(cli: Any) -> Any:
    def run(*arguments: object) -> Result:
        result: Result = cli("analyze", *arguments, "-o", "t.spectra", "--format", "json")
        assert_plain(result)
        return result

    return run


def fetched(home: Path) -> list[str]:
    """The files of checkpoints that lie about, in the cache and in the place for the while."""
    return sorted(
        path.name for path in home.rglob("*") if path.is_file() and path.name.endswith((".safetensors", ".bin"))
    )


def steps(result: Result) -> list[int]:
    return sorted({row["step"] for row in result.json["rows"]})


def test_a_trajectory_is_that_of_the_files(hub: Hub, home: Path, revisions: Any, analyze: Any, cli: Any) -> None:
    found = analyze(ADDRESS, "--revisions", "step*")
    assert (found.code, steps(found)) == (0, list(STEPS))
    for step in STEPS:
        folder = Path("local", f"step{step}")
        folder.mkdir(parents=True)
        for name, path in revisions[f"step{step}"].items():
            (folder / name).symlink_to(path)
    local = cli("analyze", "local", "-o", "local.spectra", "--format", "json")
    assert found.json["rows"] == local.json["rows"]
    assert fetched(home) == []
    assert hub.bytes_of(WEIGHTS) == sum(path.stat().st_size for path in _weights(revisions))


def _weights(revisions: Any) -> list[Path]:
    return [path for files in revisions.values() for name, path in files.items() if name == "model.safetensors"]


def test_content_is_the_blobs_own_hash(hub: Hub, revisions: Any, analyze: Any, cli: Any) -> None:
    """So that the same revision, fetched by hand, is known to be the same."""
    analyze(f"{ADDRESS}@step4")
    folder = Path("by-hand/step4")
    folder.mkdir(parents=True)
    for name, path in revisions["step4"].items():
        (folder / name).write_bytes(path.read_bytes())
    again = cli("analyze", "by-hand/step4", "-o", "t.spectra")
    assert again.code == 0
    assert "all in t.spectra already" in again.err


def test_what_is_in_the_store_is_not_fetched_again(hub: Hub, revisions: Any, analyze: Any) -> None:
    analyze(ADDRESS, "--revisions", "step*", "--steps", "0-4")
    before = len(hub.requests)
    again = analyze(ADDRESS, "--revisions", "step*", "--steps", "0-4")
    assert steps(again) == [0, 1, 2, 4]
    assert [str(one) for one in hub.requests[before:]] == ["GET /api/models/org/tiny/refs"]
    more = analyze(ADDRESS, "--revisions", "step*")
    assert steps(more) == list(STEPS)
    assert len(hub.matching("GET /cdn/")) == 5
    hub.add(REPOSITORY, "step1", revisions["step2"])  # the branch has moved
    changed = analyze(ADDRESS, "--revisions", "step*")
    assert any("steps 1 and 2 hold identical content" in line for line in changed.json["warnings"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--revisions", "step*", "--steps", "log:3"], [0, 1, 4, 1000]),
        (["--revisions", "re:^step[12]$"], [1, 2]),
        (["--revisions", "step1", "--revisions", "step4"], [1, 4]),
        (["--revisions", "*"], list(STEPS)),
    ],
)
def test_revisions_meant(hub: Hub, analyze: Any, options: list[str], expected: list[int]) -> None:
    assert steps(analyze(ADDRESS, *options)) == expected


def test_names_of_published_trajectories(hub: Hub, revisions: Any, analyze: Any) -> None:
    for place, (name, files) in enumerate(revisions.items()):
        hub.add("allenai/OLMo-tiny", f"{name}-tokens{place}B", files, tag=place == 2)
    found = analyze("hf://allenai/OLMo-tiny", "--revisions", "step*-tokens*")
    assert steps(found) == list(STEPS)


def test_one_revision_and_the_default_store(hub: Hub, cli: Any) -> None:
    assert cli("analyze", f"{ADDRESS}@step4").code == 0
    assert spectrascope.open("tiny.spectra").steps == [4]
    main = cli("analyze", ADDRESS, "-o", "main.spectra")
    assert main.code == 0
    assert "it is called step 0" in main.err
    assert "for its 5 others, such as step0, add --revisions" in main.err
    commit = hub.add(REPOSITORY, "elsewhere", {"model.safetensors": b""})
    assert "is empty" in cli("analyze", f"{ADDRESS}@{commit}", "-o", "e.spectra").err


def test_library(hub: Hub) -> None:
    found = spectrascope.analyze(ADDRESS, "l.spectra", revisions=["step*"], steps="last")
    assert found.steps == [1000]
    assert found.info(1000).source["path"] == f"{ADDRESS}@step1000"
    assert len(found.info(1000).source["commit"]) == 40


@pytest.mark.parametrize("shard", [False, True])
def test_pickles_and_shards(hub: Hub, home: Path, tmp_path: Path, analyze: Any, shard: bool) -> None:
    files = write_revisions(tmp_path / "bin", [7], shard=shard, safe=False)["step7"]
    hub.add("org/bin", "step7", files)
    found = analyze("hf://org/bin@step7")
    assert (found.code, steps(found)) == (0, [7])
    assert fetched(home) == []


def test_safetensors_are_preferred(hub: Hub, tmp_path: Path, analyze: Any) -> None:
    """Only the weights and config.json are fetched, and of two sets of weights only one."""
    both = write_revisions(tmp_path / "a", [3])["step3"] | write_revisions(tmp_path / "b", [3], safe=False)["step3"]
    hub.add("org/both", "step3", {**both, "README.md": b"words", "tf_model.h5": b"weights", "vocab.json": b"{}"})
    assert analyze("hf://org/both@step3").code == 0
    names = {request.path.rpartition("/")[2] for request in hub.matching("GET /(cdn|org/both/resolve)/")}
    assert names == {"model.safetensors", "config.json"}


def test_matched_tensors_are_all_that_is_fetched(hub: Hub, home: Path, tmp_path: Path, analyze: Any) -> None:
    """One request for each header, and then the bytes of each tensor that is asked for."""
    sharded = write_revisions(tmp_path / "s", [3], shard=True)["step3"]
    hub.add("org/shards", "step3", sharded)
    found = analyze("hf://org/shards@step3", "--match", "*layers.1.attention.dense*")
    whole = spectrascope.analyze(next(iter(sharded.values())).parent, "w.spectra", heads=None)
    (row,) = found.json["rows"]
    assert row["matrix"] == DENSE
    expected = whole.singular_values(DENSE, whole.steps[0])
    assert np.array_equal(spectrascope.open("t.spectra").singular_values(DENSE, 3), expected)
    ranges = [request for request in hub.matching(WEIGHTS) if not str(request.range).startswith("bytes=0-")]
    assert [request.sent for request in ranges] == [32 * 32 * 4]
    assert fetched(home) == []
    assert analyze("hf://org/shards@step3", "--match", "*layers.1.attention.dense*").code == 0
    assert len(hub.matching(WEIGHTS)) == len(ranges) + len([name for name in sharded if name.endswith(".safetensors")])


def test_what_the_cache_has_stays_and_is_not_fetched(hub: Hub, home: Path, analyze: Any) -> None:
    for name in ("model.safetensors", "config.json"):
        hf_hub_download(REPOSITORY, name, revision="step1")
    before = hub.bytes_of(WEIGHTS)
    assert analyze(f"{ADDRESS}@step1").code == 0
    assert hub.bytes_of(WEIGHTS) == before
    assert len([name for name in fetched(home) if name == "model.safetensors"]) == 1
    kept = analyze(ADDRESS, "--revisions", "step[124]", "--keep")
    assert steps(kept) == [1, 2, 4]
    assert len([name for name in fetched(home) if name == "model.safetensors"]) == 3
    assert not [path for path in home.rglob("*.safetensors") if "assets" in path.parts]


def test_offline_the_cache_is_all_there_is(hub: Hub, home: Path, analyze: Any, cli: Any, monkeypatch: Any) -> None:
    analyze(ADDRESS, "--revisions", "step[14]", "--keep")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(hub.requests)
    assert steps(analyze(ADDRESS, "--revisions", "step*")) == [1, 4]
    assert len(hub.requests) == before
    absent = cli("analyze", "hf://org/other@step1", "-o", "o.spectra")
    assert absent.code == 1
    assert "HF_HUB_OFFLINE forbids fetching it" in absent.err


def test_the_disk_holds_two_revisions(hub: Hub, home: Path, analyze: Any, monkeypatch: Any) -> None:
    from spectrascope.job import Job

    most: list[int] = []
    finish = Job.finish

    def counting(self: Job, *arguments: Any) -> None:
        time.sleep(0.01)
        most.append(len([name for name in fetched(home) if name == "model.safetensors"]))
        finish(self, *arguments)
        most.append(len([name for name in fetched(home) if name == "model.safetensors"]))

    monkeypatch.setattr(Job, "finish", counting)
    analyze(ADDRESS, "--revisions", "step*")
    assert len(most) == 2 * len(STEPS)
    assert max(most) <= 2


def test_the_next_revision_is_fetched_meanwhile(hub: Hub, analyze: Any, monkeypatch: Any) -> None:
    from spectrascope.job import Job

    seen: list[int] = []
    finish = Job.finish

    def waiting(self: Job, *arguments: Any) -> None:
        deadline = time.monotonic() + 20
        position = list(STEPS).index(self.reference.step)
        while len(hub.matching(WEIGHTS)) < min(position + 2, len(STEPS)) and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(len(hub.matching(WEIGHTS)))
        finish(self, *arguments)

    monkeypatch.setattr(Job, "finish", waiting)
    analyze(ADDRESS, "--revisions", "step*")
    assert seen == [2, 3, 4, 5, 5]


def test_copies_and_stale_shards_are_named(hub: Hub, tmp_path: Path, analyze: Any) -> None:
    """The known defects of published trajectories: step0 is step1, and one shard of another step."""
    found = write_revisions(tmp_path / "s", [0, 1, 2, 3], shard=True)
    shard = next(name for name in sorted(found["step2"]) if name.endswith(".safetensors"))
    found["step3"][shard] = found["step2"][shard]
    found["step1"] = found["step0"]
    for name, files in found.items():
        hub.add("org/stale", name, files)
    warnings = analyze("hf://org/stale", "--revisions", "step*").json["warnings"]
    assert any("steps 0 and 1 hold identical content" in line for line in warnings)
    assert any("is the same at steps 2 and 3 while other matrices changed" in line for line in warnings)


# What goes wrong, at which request, and what is to come of it: nothing, or a failure that says this.
PASSING = {
    "429": ("GET /api/.*/tree", [retry_after(1)]),
    "429 at the list": ("GET /api/.*/refs", [retry_after(1)]),
    "429 at the weights": (WEIGHTS, [retry_after(1)]),
    "500 at the list": ("GET /api/.*/refs", [status(500)]),
    "500 at the weights": (WEIGHTS, [status(500), status(503)]),
    "500 at the header": ("HEAD /org/tiny/resolve/.*safetensors", [status(500)]),
    "a body cut short": (WEIGHTS, [cut(1000), cut(30_000)]),
    "no answer": (WEIGHTS, [cut()]),
    "a header without answer": ("HEAD /org/tiny/resolve/.*safetensors", [cut()]),
    "a slow body": (WEIGHTS, [slow(0.01, 20_000)]),
    "a body that stalls": (WEIGHTS, [stall(30_000)]),
    "a list that stalls": ("GET /api/.*/refs", [stall()]),
}


@pytest.mark.parametrize("match", [(), ("--match", "*dense*")], ids=["whole", "in place"])
@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_waited_for(
    hub: Hub, home: Path, analyze: Any, fault: str, match: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    hub.fault(PASSING[fault][0], *PASSING[fault][1])
    found = analyze(ADDRESS, "--revisions", "step[012]", *match)
    assert (found.code, steps(found), found.json["failures"]) == (0, [0, 1, 2], [])
    assert fetched(home) == []


LASTING = {
    "500": (status(500), "HTTP 500"),
    "403": (status(403), "HTTP 403"),
    "404": (status(404, error_code="EntryNotFound"), "lacks a file that was there when it was listed"),
    "429": (retry_after(0), "limits the rate of requests"),
    "cut": (cut(), "the same command goes on"),
    "gated": (status(403, error_code="GatedRepo"), "is gated: accept its terms at"),
}


@pytest.mark.parametrize("match", [(), ("--match", "*dense*")], ids=["whole", "in place"])
@pytest.mark.parametrize("fault", LASTING)
def test_what_lasts_is_reported_and_the_run_goes_on(
    hub: Hub, home: Path, revisions: Any, analyze: Any, fault: str, match: tuple[str, ...]
) -> None:
    commit = hub.add(REPOSITORY, "step1", revisions["step1"])
    hub.fault(f"GET /cdn/.*{commit}/model", LASTING[fault][0], always=True)
    found = analyze(ADDRESS, "--revisions", "step[012]", *match)
    assert (found.code, steps(found)) == (3, [0, 2])
    (failure,) = found.json["failures"]
    assert failure["step"] == 1
    assert failure["path"] == f"{ADDRESS}@step1/model.safetensors"
    assert LASTING[fault][1] in failure["reason"]
    hub.heal()
    healed = analyze(ADDRESS, "--revisions", "step[012]", *match)
    assert (healed.code, steps(healed)) == (0, [0, 1, 2])
    assert fetched(home) == []


def test_bytes_that_were_not_published_are_found_out(hub: Hub, home: Path, analyze: Any) -> None:
    """The client looks at the size alone."""
    hub.fault(WEIGHTS, corrupt())
    found = analyze(f"{ADDRESS}@step1")
    assert found.code == 1
    assert "has other bytes than were published; the same command fetches it anew" in found.err
    assert fetched(home) == []
    assert analyze(f"{ADDRESS}@step1").code == 0
    hub.fault(WEIGHTS, corrupt())
    kept = analyze(f"{ADDRESS}@step2", "--keep")
    (blob,) = [path for path in (home / "hub").rglob("*.safetensors") if path.is_symlink()]
    assert (kept.code, f"delete {blob.resolve()}" in kept.err) == (1, True)
    blob.resolve().unlink()
    assert analyze(f"{ADDRESS}@step2", "--keep").code == 0


def test_one_commit_under_two_names(hub: Hub, home: Path, revisions: Any, analyze: Any) -> None:
    """Each has a place of its own while both are on the disk."""
    hub.name(REPOSITORY, "step3", hub.commit_of(REPOSITORY, "step2"))
    hub.name(REPOSITORY, "step5", hub.commit_of(REPOSITORY, "step2"))
    found = analyze(ADDRESS, "--revisions", "step*")
    assert (found.code, steps(found)) == (0, [0, 1, 2, 3, 4, 5, 1000])
    assert any("steps 2, 3 and 5 hold identical content" in line for line in found.json["warnings"])
    assert fetched(home) == []


def test_weights_that_are_not_the_stored_ones(hub: Hub, analyze: Any) -> None:
    assert analyze(f"{ADDRESS}@step1").code == 0
    found = analyze(f"{ADDRESS}@step1", "--weights", "averaged")
    assert (found.code, "holds live weights of step 1" in found.err) == (2, True), found.err


def test_what_was_fetched_ahead_goes_when_the_run_ends(hub: Hub, home: Path, analyze: Any, monkeypatch: Any) -> None:
    from spectrascope.errors import StoreError
    from spectrascope.run import Run

    def refusing(self: Run, plan: Any) -> None:
        raise StoreError("the disk is too small")

    monkeypatch.setattr(Run, "_announce", refusing)
    assert analyze(ADDRESS, "--revisions", "step*").code == 1
    deadline = time.monotonic() + 20
    while fetched(home) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fetched(home) == []


def test_a_server_without_ranges(hub: Hub, analyze: Any) -> None:
    hub.fault(WEIGHTS, whole(), always=True)
    found = analyze(f"{ADDRESS}@step1", "--match", "*dense*")
    assert found.code == 1
    assert "is served whole only; leave out --match" in found.err


def test_private_absent_and_gated(hub: Hub, revisions: Any, cli: Any, monkeypatch: Any) -> None:
    hub.add("org/private", "main", revisions["step1"])
    hub.hide("org/private")
    hub.add("org/gated", "main", revisions["step1"])
    hub.gate("org/gated")
    for name, words in (
        ("org/private", "is not on the Hub, or is private: check the name, or `hf auth login`"),
        ("org/absent", "is not on the Hub, or is private"),
        ("org/gated", f"is gated: accept its terms at {hub.endpoint}/org/gated, then `hf auth login`"),
    ):
        found = cli("analyze", f"hf://{name}", "-o", "p.spectra")
        assert_plain(found)
        assert found.code == 1
        assert words in found.err
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in ("org/private", "org/gated"):
        assert cli("analyze", f"hf://{name}", "-o", f"{name[4:]}.spectra").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([f"{ADDRESS}@nope"], 1, "has no such revision"),
        ([ADDRESS, "--revisions", "stop*"], 2, "no revision of hf://org/tiny is 'stop*'; did you mean"),
        ([ADDRESS, "--revisions", "re:("], 2, "is not a regular expression"),
        ([f"{ADDRESS}@step1", "--revisions", "step*"], 2, "keep one"),
        (["hf://a/b/c"], 2, "is not hf://owner/name"),
        (["hf://"], 2, "is not hf://owner/name"),
        ([f"{ADDRESS}@"], 2, "is not hf://owner/name"),
        ([".", "--revisions", "step*"], 2, "--revisions are of a repository on the Hub"),
        ([ADDRESS, "--revisions", "step*", "--steps", "17"], 2, "there is no step 17"),
    ],
)
def test_wrong_requests(hub: Hub, cli: Any, arguments: list[str], code: int, words: str) -> None:
    found = cli("analyze", *arguments, "-o", "w.spectra")
    assert_plain(found)
    assert (found.code, words in found.err) == (code, True), found.err
    assert not Path("w.spectra").exists()


def test_two_revisions_of_one_step(hub: Hub, revisions: Any, cli: Any) -> None:
    hub.add(REPOSITORY, "step4-again", revisions["step4"])
    found = cli("analyze", ADDRESS, "--revisions", "step*", "-o", "w.spectra")
    assert found.code == 2
    assert f"{ADDRESS}@step4 and {ADDRESS}@step4-again are both step 4" in found.err


def test_a_revision_without_weights(hub: Hub, analyze: Any) -> None:
    hub.add(REPOSITORY, "step3", {"README.md": b"later"})
    found = analyze(ADDRESS, "--revisions", "step[234]")
    assert (found.code, steps(found)) == (3, [2, 4])
    assert "holds no weights of a format that is read here: README.md" in found.json["failures"][0]["reason"]


@pytest.mark.parametrize("match", [(), ("--match", "*dense*")], ids=["whole", "in place"])
def test_a_part_of_a_model_is_no_model(hub: Hub, tmp_path: Path, analyze: Any, match: tuple[str, ...]) -> None:
    files = write_revisions(tmp_path / "s", [3], shard=True)["step3"]
    shards = sorted(name for name in files if name.endswith(".safetensors"))
    hub.add("org/part", "step3", {name: path for name, path in files.items() if name not in shards[1:]})
    found = analyze("hf://org/part@step3", *match)
    assert (found.code, "lacks some of its shards" in found.err) == (1, True), found.err


def test_tensors_that_overlap_are_refused_in_place(hub: Hub, analyze: Any) -> None:
    entry = {"dtype": "F32", "shape": [4, 4]}
    header = json.dumps({"a.weight": entry | {"data_offsets": [0, 64]}, "b.weight": entry | {"data_offsets": [32, 96]}})
    content = len(header).to_bytes(8, "little") + header.encode() + bytes(96)
    hub.add("org/lying", "step1", {"model.safetensors": content})
    found = analyze("hf://org/lying@step1", "--match", "*")
    assert (found.code, "is not a valid safetensors file" in found.err) == (1, True), found.err


def test_show_lists_revisions_before_anything_is_fetched(hub: Hub, revisions: Any, cli: Any) -> None:
    found = cli("show", ADDRESS, "--revisions", "step*", "--format", "json")
    assert_plain(found)
    rows = found.json["rows"]
    assert [(row["revision"], row["step"]) for row in rows] == [(f"step{step}", step) for step in STEPS]
    sizes = [path.stat().st_size for path in _weights(revisions)]
    assert [row["bytes"] for row in rows] == [row["to_fetch"] for row in rows] == sizes
    assert all(row["files"] == ["model.safetensors"] for row in rows)
    assert hub.matching("(GET|HEAD) /(cdn|org)/") == []
    table = cli("show", ADDRESS, "--revisions", "step*", "--steps", "last")
    assert table.out.splitlines()[1].split()[:2] == ["step1000", "1000"]
    assert "1 revision, 82 kB to fetch" in table.err


def test_show_reads_headers_alone(hub: Hub, home: Path, tmp_path: Path, cli: Any) -> None:
    found = cli("show", f"{ADDRESS}@step4", "--format", "json")
    assert len(found.json["rows"]) == 16
    pairs = cli("show", f"{ADDRESS}@step4", "--pairs", "--format", "json").json["rows"]
    assert any(row["kind"] == "q_k" and row["heads"] for row in pairs)
    assert all(str(request.range).startswith("bytes=0-") for request in hub.matching(WEIGHTS))
    assert not (home / "assets" / "spectrascope").exists() or fetched(home) == []
    hub.add("org/bin", "main", write_revisions(tmp_path / "bin", [7], safe=False)["step7"])
    pickles = cli("show", "hf://org/bin")
    assert pickles.code == 1
    assert "whose tensors are not known before all of it is fetched" in pickles.err


def test_kill_at_any_instant(revisions: Any, tmp_path: Path) -> None:
    """What is finished stays, what was fetched for the while is gone after the next run, and its bytes are the same."""
    with Hub() as hub:
        for name, files in revisions.items():
            hub.add(REPOSITORY, name, files)
        command, env = command_on(hub, tmp_path / "home")
        hub.fault(WEIGHTS, slow(0.05, 10_000), always=True)
        random = np.random.default_rng(0)
        for _ in range(3):
            process = subprocess.Popen([*command, "-o", "k.spectra"], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
            before = len(hub.requests)
            while len(hub.requests) < before + 3 and process.poll() is None:
                time.sleep(0.02)
            time.sleep(random.uniform(0, 1))
            process.send_signal(signal.SIGKILL)
            process.wait()
        hub.heal()
        done = subprocess.run([*command, "-o", "k.spectra"], cwd=tmp_path, env=env, capture_output=True, check=True)
        clean = subprocess.run([*command, "-o", "c.spectra"], cwd=tmp_path, env=env, capture_output=True, check=True)
        assert json.loads(done.stdout)["rows"] == json.loads(clean.stdout)["rows"]
        assert fetched(tmp_path / "home") == []
        names = sorted(os.listdir(tmp_path / "k.spectra"))
        assert names == sorted(os.listdir(tmp_path / "c.spectra"))
        for name in names:
            assert (tmp_path / "k.spectra" / name).read_bytes() == (tmp_path / "c.spectra" / name).read_bytes()


def command_on(hub: Hub, home: Path) -> tuple[list[str], dict[str, str]]:
    """A run over all revisions in a process of its own, and the environment that it needs."""
    command = [sys.executable, "-m", "spectrascope", "analyze", ADDRESS, "--revisions", "step*", "--format", "json"]
    return command, environment(hub, home) | {"OMP_NUM_THREADS": "1"}


def test_two_processes_on_one_repository_and_store(revisions: Any, home: Path, tmp_path: Path) -> None:
    """Neither takes the files of the other away."""
    with Hub() as hub:
        for name, files in revisions.items():
            hub.add(REPOSITORY, name, files)
        command, env = command_on(hub, home)
        hub.fault(WEIGHTS, slow(0.02, 20_000), always=True)
        both = [
            subprocess.Popen([*command, "-o", "x.spectra"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        rows = [json.loads(process.communicate(timeout=120)[0])["rows"] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert rows[0] == rows[1]
        assert [path for path in (home / "assets").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    "command", [["analyze", ADDRESS, "-o", "x.spectra"], ["show", ADDRESS, "--revisions", "step*"]]
)
def test_ctrl_c_while_a_server_stalls(command: list[str], revisions: Any, home: Path, tmp_path: Path) -> None:
    with Hub() as hub:
        for name, files in revisions.items():
            hub.add(REPOSITORY, name, files)
        hub.add(REPOSITORY, "main", revisions["step1000"])
        hub.fault("GET /api/.*/(refs|tree)" if command[0] == "analyze" else "GET /api/.*/tree", stall(), always=True)
        env = environment(hub, home) | {"OMP_NUM_THREADS": "1"}
        # A shell's background job ignores SIGINT, and so would what is started below it.
        program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        program += "from spectrascope.cli import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", program, *command], cwd=tmp_path, env=env, stderr=subprocess.PIPE
        )
        while not hub.matching("/refs" if command[0] == "analyze" else "/tree"):
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=10)
        finally:
            process.kill()
        assert (process.returncode, b"Traceback" in said) == (130, False)
