"""The HDF5 cache of spectra. The only importer of h5py.

A store is a directory `NAME.spectra/` with one immutable file per checkpoint:

    step0000000500.h5
        attributes    format, format_version, spectrascope (the version that wrote it)
        catalogue     JSON text: step, source, settings, the matrices in model order (name, shape, dtype, role, hashes,
                      reason, ...), the skipped tensors, the architecture. Names are data in it, never HDF5 paths
        singular_values   float64, the R values of each matrix one after the other
        left, right       float32, of each matrix k rows of m and of n numbers, one after the other; of the blocks of
                          a matrix, which pairs of layers read, one side alone, k rows of blocks x m

A file is written under a temporary name, synced and renamed: a kill loses a minute of the checkpoint in hand, readers
never see half a file, and many machines can write at once. An existing file is never opened for writing.

    step_file.py    one step: what it says, and writing it
    directory.py    where the files are, and making, clearing and mending a store
    trajectory.py   the store opened for reading
    parts.py        what is finished of a checkpoint that takes long, below the hidden directory .unfinished
    plain.py        one plain HDF5 file for other tools
    hdf5.py         opening HDF5 files so that every failure is named
"""

from .directory import clear_temporaries, open_for_writing, set_aside, step_files, step_path
from .parts import Parts, part_files, remove_parts
from .plain import write_plain
from .step_file import FORMAT_VERSION, Record, StepInfo, StepWriter, read_info, read_sides, read_step, read_vectors
from .trajectory import Trajectory, open

__all__ = [
    "FORMAT_VERSION",
    "Parts",
    "Record",
    "StepInfo",
    "StepWriter",
    "Trajectory",
    "clear_temporaries",
    "open",
    "open_for_writing",
    "part_files",
    "read_info",
    "read_sides",
    "read_step",
    "read_vectors",
    "remove_parts",
    "set_aside",
    "step_files",
    "step_path",
    "write_plain",
]
