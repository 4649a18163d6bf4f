"""What papers save of an activation, as ways: each is a frozen value in a file of its own.

`way` says what a way is, `sites` finds the activations of a joint graph, `apply` writes a way there, and `policies`
has the names by which `actfit.compress` takes them. A new way is one file, one line in `policies`, and its tests.
"""
