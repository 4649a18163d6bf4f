"""From symbolic expressions to Triton kernels and their plain-PyTorch twins. Emits text; only `inspect` compiles."""
