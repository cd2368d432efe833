"""Pure functions of NumPy arrays, one file per idea. No files, tensors or models here."""
