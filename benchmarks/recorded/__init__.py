"""Few-bit tables fitted to what a network feeds its activations, beside the usual ones: the error of the gradient."""

# Batches whose gradients are compared. Here, since reports are made where what the study needs may be missing.
JUDGED = 8
