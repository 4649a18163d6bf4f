"""One engine for what training saves: each block's graph of forward and backward is captured, cut, and run.

    handle = actfit.compress(model)           # exact: backward recomputes cheap operations, masks take one bit
    handle = actfit.compress(model, bits=8)   # tensors that backward needs are saved in 8 bits, too
    print(handle)
    handle.remove()

`install` finds the parts of a model that are captured, `capture` captures their calls, `partition` cuts the graphs,
`codes` writes codes into them, and `execute` runs them by PyTorch's own kernels. Nothing is imported here.
"""
