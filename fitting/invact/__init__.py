"""InvAct: f' from the output. g(y) = f'(f⁻¹(y)) on each side of the point T where f turns; a bit tells the side.

Nothing is imported here, so that the command answers Ctrl-C early: take what you need from the modules.
"""
