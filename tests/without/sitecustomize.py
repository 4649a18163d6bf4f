"""With this folder on PYTHONPATH, Python starts without the packages that a machine with a GPU may lack.

They are absent as if never installed: neither found nor known by version; `import` says ModuleNotFoundError.
"""

import sys
from importlib.machinery import PathFinder

ABSENT = {
    *("numba", "llvmlite", "flint", "joblib", "matplotlib", "threadpoolctl", "sklearn", "pyoperon", "pysr", "dask"),
    *("distributed", "jsonschema", "onnx", "onnxscript", "onnx_ir", "expecttest", "peft", "accelerate", "torchvision"),
    *("mkdocs", "playwright", "jupyterlab", "nbclient", "nbconvert", "liger_kernel"),
}
# As distributions are called where that is another name.
DISTRIBUTIONS = ABSENT | {"python-flint", "python_flint", "scikit-learn", "scikit_learn", "onnx-ir"}


class Finder:
    """Python's own finder of modules in folders, without the absent packages."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else PathFinder.find_spec(name, path, target)

    @staticmethod
    def find_distributions(*context):
        for distribution in PathFinder.find_distributions(*context):
            if distribution.name not in DISTRIBUTIONS:
                yield distribution

    invalidate_caches = PathFinder.invalidate_caches


sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
