"""Plans for a budget of memory: how many bits each saved tensor of a model gets."""
