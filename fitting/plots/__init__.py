"""Pictures of fits. The only package here that imports matplotlib; draws on Figure objects, never on pyplot's state."""

from actfit.coefficients.pictures import FORMATS
from actfit.fitting.plots.bits import bits_figure, overview_figure
from actfit.fitting.plots.curves import error_figure
from actfit.fitting.plots.fewbit import fewbit_figure, widths_figure
from actfit.fitting.plots.files import check_path, save
from actfit.fitting.plots.fronts import fronts_figure, root_figure
from actfit.fitting.plots.invact import floor_figure, invact_figure
from actfit.fitting.plots.joint import joint_bits_figure, joint_figure
from actfit.fitting.plots.memory import memory_figure

__all__ = [
    "FORMATS",
    "bits_figure",
    "check_path",
    "error_figure",
    "fewbit_figure",
    "floor_figure",
    "fronts_figure",
    "invact_figure",
    "joint_bits_figure",
    "joint_figure",
    "memory_figure",
    "overview_figure",
    "root_figure",
    "save",
    "widths_figure",
]
