"""FewBit: the best approximation of f' by 2**bits levels, with a certificate. The API is in `solve`.

Nothing is imported here, so that the command line can be up, and answer Ctrl-C, before its libraries are.
"""
