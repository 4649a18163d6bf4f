from tests.codegen.run import interpreter  # noqa: F401
