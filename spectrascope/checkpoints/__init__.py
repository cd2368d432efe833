"""Where weights come from: checkpoints in step order, each a mapping of names to tensors that are read lazily.

find.py          sources -> checkpoints in step order
steps.py         the step of a checkpoint, from its name
checkpoint.py    one checkpoint: bare names, ties, content hash
container.py     the protocol that every format keeps
formats.py       which format opens which suffix
safetensors_file.py, torch_file.py, npz_file.py, sharded.py, memory.py    one file per format
directory.py     which files of a directory are its weights
names.py         wrapper prefixes, and the state dict inside a training checkpoint
"""

from .checkpoint import Checkpoint
from .find import Found, Reference, find_checkpoints, from_state_dicts

__all__ = ["Checkpoint", "Found", "Reference", "find_checkpoints", "from_state_dicts"]
