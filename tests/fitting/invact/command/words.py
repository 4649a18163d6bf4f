"""What tests of actfit invact ask for."""

MISH = ("--fn", "mish", "--dtype", "bfloat16")
TANH = ("--fn", "tanh", "--dtype", "float16")
CLOSED = ["relu", "sigmoid", "hardswish"]
