"""The one error that all decoders raise."""


class FrameError(ValueError):
    """Bytes from outside do not match the layout. The text describes the problem for people.

    `code` is the code of the local protocol (`wire.frames.Code`) for the response. `fatal`: whether the stream cannot
    be read any further. A wrong column refuses one frame; a wrong length or shape ends the session. `seq` is the
    refused frame's client sequence, if the decoder has read it and the caller has no other source for it.
    """

    def __init__(self, text: str, *, code: str = "protocol", fatal: bool = True, seq: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.fatal = fatal
        self.seq = seq
