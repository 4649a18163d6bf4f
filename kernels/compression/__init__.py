"""Few bits for every tensor that a compiled model saves for its backward pass.

    compiled = torch.compile(model, options=actfit.options(bits=4))
    ...  # train
    print(actfit.report(compiled))
    print(actfit.gradient_error(compiled, lambda model: criterion(model(x), y)))

PyTorch's partitioner cuts the graph of forward and backward in two; tensors that cross the cut are saved. Here each
large one is replaced by its codes, encoded after its last use in forward and decoded right before each use in backward,
by operations that Inductor fuses with their neighbours, on a GPU by our own kernels. Forward is exact; the gradient is
approximate.
"""
