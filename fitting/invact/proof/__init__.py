"""The proof of a formula: a bound of |q - g| that holds for every x of a branch."""
