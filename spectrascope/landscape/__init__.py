"""What needs a model that runs: losses between checkpoints, after pruning, and in their surroundings.

task.py          the user's model and loss
weights.py       checkpoints as the weights of that model
batch_norm.py    running statistics, estimated anew
interpolation.py the straight line between two checkpoints
"""
