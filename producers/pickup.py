"""What the four buttons of a beam position monitor see of a beam at (x, y). Knows neither the ring nor time.

In a round pipe of radius b a thin beam at distance r from the axis, in direction θ, has an image current whose density
along the wall, at azimuth φ, is::

    (b² - r²) / (b² + r² - 2 b r cos(φ - θ))

of its mean (R. E. Shafer, Beam Position Monitoring, AIP Conf. Proc. 212 (1990) 26; the same in P. Forck, Lecture Notes
on Beam Instrumentation and Diagnostics, JUAS). A button that is small against b sees the density at its centre. Near
the axis the difference over the sum of the outer and inner pairs is √2 x / b, of the upper and lower pairs √2 y / b.
"""

import numpy as np
from numpy.typing import NDArray

from schemas.batch import Floats

PIPE_RADIUS_MM = 22.0
VOLTS_PER_MA = 0.01  # 1 V on each button at 100 mA on the axis: the middle of the range of such electronics
BUTTONS = ("top_in", "bot_in", "bot_out", "top_out")
_DIAGONAL = np.sqrt(0.5)
_X = np.array([-1.0, -1.0, 1.0, 1.0]) * _DIAGONAL  # outer is +x, away from the centre of the ring
_Y = np.array([1.0, -1.0, -1.0, 1.0]) * _DIAGONAL
_REACH = 0.9  # of the pipe's radius: a beam beyond it is lost, and the formula's pole near


def amplitudes_v(x_mm: Floats, y_mm: Floats, current_ma: Floats) -> Floats:
    """Give the amplitude of each button, V; one more axis than the arguments, in the order of BUTTONS."""
    x = np.clip(x_mm / PIPE_RADIUS_MM, -_REACH, _REACH)[..., np.newaxis]
    y = np.clip(y_mm / PIPE_RADIUS_MM, -_REACH, _REACH)[..., np.newaxis]
    r2 = np.minimum(x * x + y * y, _REACH**2)
    density = (1.0 - r2) / (1.0 + r2 - 2.0 * (x * _X + y * _Y))
    amplitudes: Floats = VOLTS_PER_MA * current_ma[..., np.newaxis] * density
    return amplitudes


def positions_mm(amplitudes: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Estimate x and y from the buttons by difference over sum: right near the axis, too small far from it."""
    top_in, bot_in, bot_out, top_out = np.moveaxis(amplitudes.astype(np.float64), -1, 0)
    total = top_in + bot_in + bot_out + top_out
    scale_mm = PIPE_RADIUS_MM * _DIAGONAL
    x = ((top_out + bot_out) - (top_in + bot_in)) / total
    y = ((top_in + top_out) - (bot_in + bot_out)) / total
    return scale_mm * x, scale_mm * y
