"""Frames one by one, as they are on the wire."""

from __future__ import annotations

from pulsar_spark.protocol.frame_parts import Frame
from pulsar_spark.protocol.frames import FrameDecoder


class SingleFrames(FrameDecoder):
    """A decoder that gives no blocks."""

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, or None until more data is received."""
        end = self._next_end()
        if end is None:
            return None
        frame = self._parse(end)
        self._advance(end)
        return frame
