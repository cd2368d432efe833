"""Formats of other frameworks: recognised, and refused by name with the way to convert."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ..errors import CheckpointError


@dataclass(frozen=True)
class Foreign:
    """A format that is not read here; `convert` is Python, or words, that makes a file which is."""

    name: str
    convert: str

    def refusal(self, path: str | PathLike[str]) -> CheckpointError:
        """The error that says so of a file."""
        return CheckpointError(path, f"is {self.name}, which is not read here; {self.convert}")


KERAS = Foreign(
    "a Keras or HDF5 file",
    "in Python: numpy.savez(OUT, **{w.path: w.numpy() for w in keras.models.load_model(FILE).weights})",
)
KERAS_WEIGHTS = Foreign(
    "a file of Keras weights",
    "in Python, where model is its model: model.load_weights(FILE), then "
    "numpy.savez(OUT, **{w.path: w.numpy() for w in model.weights})",
)
GGUF = Foreign(
    "a GGUF file, whose weights are quantised in blocks",
    "analyse the model that it was made from, or in Python: numpy.savez(OUT, **{t.name: gguf.dequantize(t.data, "
    "t.tensor_type) for t in gguf.GGUFReader(FILE).tensors})",
)
ONNX = Foreign(
    "an ONNX graph",
    "in Python: numpy.savez(OUT, **{w.name: onnx.numpy_helper.to_array(w) for w in onnx.load(FILE).graph.initializer})",
)
TORCHSCRIPT = Foreign("a TorchScript program", "in Python: torch.save(torch.jit.load(FILE).state_dict(), OUT)")
EXPORTED = Foreign("a program of torch.export", "in Python: torch.save(torch.export.load(FILE).state_dict, OUT)")
FLAX = Foreign(
    "a Flax file",
    "in Python: safetensors.flax.save_file(flax.traverse_util.flatten_dict(flax.serialization.msgpack_restore("
    "open(FILE, 'rb').read()), sep='.'), OUT)",
)
TENSORFLOW = Foreign("a TensorFlow file", "save its weights with safetensors.tensorflow.save_file")
NEMO = Foreign("a NeMo archive", "unpack it (`tar xf FILE`) and analyse the model_weights.ckpt in it")
ARCHIVE = Foreign("a tar archive", "unpack it (`tar xf FILE`) and analyse what is in it")
PADDLE = Foreign("a Paddle file", "in Python: safetensors.paddle.save_file(paddle.load(FILE), OUT)")
COMPILED = Foreign("a compiled model", "analyse the checkpoint that it was made from")
PART = Foreign("one part of a torch.distributed.checkpoint", "name the directory that it is in")

PICKLE = Foreign("a pickle of Python's own", "save the arrays with numpy.savez, or tensors with torch.save")
ARRAY = Foreign("a single array", "in Python: numpy.savez(OUT, NAME=numpy.load(FILE))")
ORBAX = Foreign(
    "a checkpoint of Orbax",
    "restore it, and in Python: safetensors.flax.save_file(flax.traverse_util.flatten_dict(params, sep='.'), OUT)",
)
ORBAX_FILES = ("_CHECKPOINT_METADATA", "manifest.ocdbt", "_METADATA")

SUFFIXES = {
    ".keras": KERAS,
    ".weights.h5": KERAS_WEIGHTS,
    ".h5": KERAS,
    ".hdf5": KERAS,
    ".gguf": GGUF,
    ".onnx": ONNX,
    ".pt2": EXPORTED,
    ".msgpack": FLAX,
    ".nemo": NEMO,
    ".tar": ARCHIVE,
    ".tflite": COMPILED,
    ".pb": TENSORFLOW,
    ".index": TENSORFLOW,
    ".pkl": PICKLE,
    ".pickle": PICKLE,
    ".joblib": PICKLE,
    ".npy": ARRAY,
    ".pdparams": PADDLE,
    ".distcp": PART,
    ".metadata": PART,
}
MAGIC = {b"GGUF": GGUF, b"\x89HDF\r\n\x1a\n": KERAS}
# Members of zip archives, which .pt files are as well, by the end of their names.
MEMBERS = {"constants.pkl": TORCHSCRIPT, "archive_format": EXPORTED, "model.weights.h5": KERAS}


def foreign_by_name(path: Path) -> Foreign | None:
    """The foreign format that a name ends in, None for any other name."""
    return next((format for suffix, format in SUFFIXES.items() if path.name.lower().endswith(suffix)), None)


def refuse_foreign(path: Path, start: bytes) -> None:
    """Raises CheckpointError for a file that begins as those of a foreign format do, whatever its name."""
    for magic, format in MAGIC.items():
        if start.startswith(magic):
            raise format.refusal(path)


def refuse_foreign_archive(path: Path) -> None:
    """Raises CheckpointError for a zip archive whose members are those of a foreign format."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except Exception:  # damaged: torch.load says how
        return
    for member, format in MEMBERS.items():
        if member in names:
            raise format.refusal(path)
