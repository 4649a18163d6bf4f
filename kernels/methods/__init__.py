"""Methods as objects: what each saves for backward, what it needs, what it refuses and why. No module needs torch.

`registry` lists them; `docs/how-to/add_method.md` adds one.
"""
