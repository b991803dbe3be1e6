"""On which device and in which number format networks compute: what was asked for, once for the whole process.

On the processor in float32, which nobody has to ask for, answers and keys are the same bits every time. On another
device or in another format they are not those bits, and a store remembers what its keys were made with.
"""

from __future__ import annotations

from dataclasses import dataclass

from silo.errors import SiloError, did_you_mean

DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Placement:
    """A device and a number format, as far as somebody asked for them; "" leaves a choice open.

    `auto` is the first of cuda, mps and cpu that is there, and of formats float32 on the processor and elsewhere that
    of the weights on disk.
    """

    device: str = ""
    dtype: str = ""

    def __post_init__(self) -> None:
        for name, value, known in (("device", self.device, DEVICES), ("dtype", self.dtype, DTYPES)):
            if value and value.partition(":")[0] not in known:
                hint = did_you_mean(value, known)
                raise SiloError("usage", f"there is no {name} '{value}': choose one of {', '.join(known)}", hint)

    def over(self, other: Placement) -> Placement:
        """This one, and of the other what this leaves open."""
        return Placement(self.device or other.device, self.dtype or other.dtype)

    def agrees(self, other: Placement) -> bool:
        """True if whoever asked for this gets it from the other; `auto` takes anything."""
        pairs = ((self.device, other.device), (self.dtype, other.dtype))
        return all(asked in ("", "auto", given) for asked, given in pairs)

    @property
    def mark(self) -> str:
        """What a store remembers of keys that torch made there: nothing of the processor in float32."""
        return "" if self == CPU else f"{self.device} {self.dtype}"

    @classmethod
    def of_mark(cls, mark: str) -> Placement:
        """The inverse of `mark`."""
        return cls(*mark.split()) if mark not in ("", ENGINE) else CPU

    def __str__(self) -> str:
        return f"{self.device} in {self.dtype}"


CPU = Placement("cpu", "float32")
"""Where bits are the same every time."""
ENGINE = "engine"
"""What a store remembers of keys that the decode engine made; it computes on the processor in float32 too."""
NOT_ASKED = Placement()

_asked, _threads = NOT_ASKED, 0


def ask_for(placement: Placement, *, threads: int = 0) -> None:
    """Choose for every network that this process opens from now on, as far as its opening leaves that open.

    `threads` are the cores it may use, 0 for all there are.
    """
    global _asked, _threads
    if threads < 0:
        raise SiloError("usage", f"{threads} is no number of threads", "give the number of cores, or leave it out")
    _asked, _threads = placement, threads


def asked() -> Placement:
    """What was chosen for this process."""
    return _asked


def asked_threads() -> int:
    """How many cores were chosen for this process, 0 if nobody chose."""
    return _threads
