"""What papers save of an activation, as ways.

`way` says what a way is, `sites` finds the activations of a joint graph, `apply` writes a way there, and `policies` has
the ways, and the names by which `actfit.compress` takes them.
"""
