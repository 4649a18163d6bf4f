"""InvAct: f'(x) from the output y = f(x). On each branch of f, g(y) = f'(f⁻¹(y)); a bit says on which branch x is.

The ideas, and where they are:

- branches of f, left and right of its turning point T: `branches`
- the exact g, by power series and Newton's method: `exact`
- the error floor, the least error of any function of a rounded output: `error_floor`, `formats`
- a formula q(y) for g, and its price in instructions: `variable`, `formula`, `price`
- engines that propose formulas: `engines` (closed forms, minimax, templates) and `symbolic` (PySR, Operon)
- the judge of all formulas, the rule they must keep, their combinations and the Pareto front: `judge`, `front`
- the proven bound of |q - g|: `proof`
- a fit, which brings them together, and its file: `solve`, `sweep`, `document`, `verify`
- the command: `arguments`, `__main__`, `report`

Nothing is imported here, so that the command answers Ctrl-C early: import from the modules.
"""
