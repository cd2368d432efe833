"""Where weights come from: checkpoints in step order, each a mapping of names to tensors that are read lazily.

find.py          sources -> checkpoints in step order
origin.py        where a checkpoint is that is not on this disk
hub/             the Hugging Face Hub
steps.py         the step of a checkpoint, from its name
checkpoint.py    one checkpoint: bare names, effective weights, ties, content hash
container.py     the protocol that every format keeps
formats.py       which format opens which suffix
safetensors_file.py, torch_file.py, npz_file.py, sharded.py, distributed.py, memory.py    one file per format
deepspeed.py, foreign.py, placeholders.py    what is recognised and refused
directory.py     which files of a directory are its weights
payload.py       the state dict, and averages of it, inside a training checkpoint
averages.py      live weights and averaged copies of them (EMA), told apart
names.py         wrapper prefixes
effective/       re-parametrised, quantised and adapted weights as they act in the network
"""

from .averages import require_weights
from .checkpoint import Checkpoint
from .container import Container
from .find import Found, Reference, find_checkpoints, from_state_dicts, is_on_the_hub
from .origin import HubRequest, Origin, Report, Stamp

__all__ = [
    "Checkpoint",
    "Container",
    "Found",
    "HubRequest",
    "Origin",
    "Reference",
    "Report",
    "Stamp",
    "find_checkpoints",
    "from_state_dicts",
    "is_on_the_hub",
    "require_weights",
]
