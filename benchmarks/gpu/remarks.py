"""What a dry run of `benchmarks.gpu` leaves open."""


def only_a_device_shows() -> list[str]:
    """A line for each."""
    return [
        "what Triton's compiler and the GPU make of the kernels: the interpreter has neither registers nor races",
        "functions of libdevice and the GPU's own exp2 and rsqrt, whose last bits differ from the processor's",
        "more than 2^31 elements, several programs at a time, unaligned pointers, streams",
        "torch.compile for CUDA: what Inductor fuses, with and without the flag, and Liger-Kernel's gates",
        "coded partitions: here nothing is compiled; on a GPU they decode by an expression of their own",
        "CUDA's events, the flushed cache, GB/s and shares of a copy: here the processor's clock runs",
        "whether the predicted shares of issue slots say what takes time",
        "the allocator's books: here storages are counted; its rounding, cuBLAS's and cuDNN's memory",
        "FlashAttention and what it keeps; fused AdamW; autocast as CUDA has it",
        "the largest batch: here memory is said to be small, and no allocator breaks off",
        "whether the expected seconds hold, and with them half an hour for all of it",
    ]
