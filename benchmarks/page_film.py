"""An animated GIF of what a browser shows, with a line below every frame that says what is happening."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page

_WIDTH = 900
_STRIP = 44
_COLOURS = 192
_STEP_MS = 220
_INK, _GROUND = "#ffffff", "#0b5f7c"


class Film:
    """Frames of one page, in the order they were taken."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._frames: list[Image.Image] = []
        self._milliseconds: list[int] = []
        self._font = ImageFont.load_default(size=20)

    def frame(self, line: str, milliseconds: int = _STEP_MS) -> None:
        """Take what is in the window now; a frame like the one before only lasts longer."""
        frame = self._captioned(Image.open(io.BytesIO(self._page.screenshot())).convert("RGB"), line)
        if self._frames and self._frames[-1].tobytes() == frame.tobytes():
            self._milliseconds[-1] += milliseconds
            return
        self._frames.append(frame)
        self._milliseconds.append(milliseconds)

    def hold(self, line: str, seconds: float) -> None:
        """Take what is there once it is at rest, for people to read."""
        self._page.wait_for_timeout(400)
        self.frame(line, int(1000 * seconds))

    def _captioned(self, shot: Image.Image, line: str) -> Image.Image:
        height = round(shot.height * _WIDTH / shot.width)
        whole = Image.new("RGB", (_WIDTH, height + _STRIP), _GROUND)
        whole.paste(shot.resize((_WIDTH, height), Image.Resampling.LANCZOS))
        ImageDraw.Draw(whole).text((_WIDTH / 2, height + _STRIP / 2), line, fill=_INK, font=self._font, anchor="mm")
        return whole

    def save(self, path: Path) -> None:
        """One palette for all frames, so that what does not change costs nothing."""
        widest = Image.new("RGB", (_WIDTH, sum(frame.height for frame in self._frames)))
        top = 0
        for frame in self._frames:
            widest.paste(frame, (0, top))
            top += frame.height
        palette = widest.quantize(_COLOURS, dither=Image.Dither.NONE)
        drawn = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self._frames]
        drawn[0].save(path, save_all=True, append_images=drawn[1:], duration=self._milliseconds, loop=0, optimize=True)
