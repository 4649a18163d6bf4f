"""Records the inputs of a model's activations in histograms, from which `fitting` makes tables and codes.

Only counts are stored. All histograms have the same bins, so that those of several workers or days can be added.
"""

from typing import TYPE_CHECKING

from actfit.coefficients.lazy import lazily

if TYPE_CHECKING:
    from actfit.kernels.record.histograms import Histogram, recorded

__all__ = ["Histogram", "recorded"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, {"histograms": __all__})
