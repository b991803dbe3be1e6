"""Arrays by what they hold, under the same names in every engine; their axes are said where they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
UInt8s = NDArray[np.uint8]
UInt32s = NDArray[np.uint32]
UInt64s = NDArray[np.uint64]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Unsigned = NDArray[np.unsignedinteger[Any]]
"""uint8, uint16, uint32 or uint64: the narrowest that holds the largest value."""

Multiply = Callable[[Float32s, Float32s], Float32s]
"""Any matrix product of float32."""
