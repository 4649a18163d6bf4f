"""Methods as values: what each saves for backward, what it needs, what it refuses and why. Nothing here needs torch.

`registry` lists them; `docs/add_method.md` adds one.
"""
