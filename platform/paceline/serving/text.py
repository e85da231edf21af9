"""From token ids to text that may be shown: whole characters only, and nothing that may turn out to be a stop string.
Pure."""

import codecs
from collections.abc import Callable, Sequence


class TextStream:
    """Text of one answer, token by token.

    The gateway holds this, not the engine: a change of replica can then neither split a character nor repeat a piece.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._stop = tuple(filter(None, stop))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._shown: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        """All that was shown."""
        return "".join(self._shown)

    def push(self, token_id: int) -> str:
        """Take one token; return what may be shown now. Once `stopped` is true, take no more."""
        self._held += self._decoder.decode(self._token_bytes(token_id))
        cut = min((at for at in map(self._held.find, self._stop) if at >= 0), default=-1)
        if cut >= 0:
            self.stopped = True
            return self._show(cut, forget=True)
        return self._show(len(self._held) - self._unsafe_tail())

    def finish(self) -> str:
        """The answer is over: show what was held back. A character that never became whole shows as U+FFFD."""
        self._held += self._decoder.decode(b"", final=True)
        return self._show(len(self._held))

    def _unsafe_tail(self) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0

    def _show(self, length: int, forget: bool = False) -> str:
        shown, self._held = self._held[:length], "" if forget else self._held[length:]
        if forget:
            self._decoder.reset()
        self._shown.append(shown)
        return shown
