"""Names of valid options, defined only here, so that checking them needs no PyTorch."""

DTYPES = ("float32", "bfloat16", "float16", "float64")
ATTENTION = ("eager", "sdpa")
ACCOUNTINGS = ("as-run", "cuda")
OPTIMIZERS = ("adamw", "adam", "sgd", "adamw-fused")
MODELS = (
    *("bert", "roberta", "roberta-large", "gpt2", "vit", "clip", "ast", "llama", "mistral"),
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg11", "vgg16", "vgg19"),
    *("efficientnet-b0", "efficientnet-b3", "efficientnet-b7"),
    *("mlp", "block"),
)
