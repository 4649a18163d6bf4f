"""Pictures of fits. The only package here that imports matplotlib; draws on Figure objects, never on pyplot's state."""

from coefficients.pictures import FORMATS
from fitting.plots.bits import bits_figure, overview_figure
from fitting.plots.curves import error_figure
from fitting.plots.fewbit import fewbit_figure
from fitting.plots.files import check_path, save
from fitting.plots.fronts import fronts_figure, root_figure
from fitting.plots.invact import floor_figure, invact_figure
from fitting.plots.joint import joint_bits_figure, joint_figure
from fitting.plots.memory import memory_figure

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
]
