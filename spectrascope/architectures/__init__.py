"""Facts about families of architectures: head layouts and pairs of consecutive matrices. One small file per family.

    pairs.py        what a pair, a side, a block and a slice is
    facts.py        what config.json says
    layers.py       the matrices of a model by name
    layouts.py      where q, k and v are in a fused projection
    transformer.py  the pairs of a Transformer, from the names of its family
    user_pairs.py   pairs that a user lists in a file
    registry.py     all families, and which of them a model is of

To add a family of Transformers, write a file with its names and list it in registry.py; for others see mlp.py.
"""
