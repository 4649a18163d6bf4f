"""Few-bit tables fitted to what a network feeds its activations, beside the usual ones: the error of the gradient."""
