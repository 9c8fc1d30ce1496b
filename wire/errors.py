"""The one error that decoders raise, whatever the bytes."""


class FrameError(ValueError):
    """Bytes from outside are not what the layout asks for. The text says what was wrong, in words for a person.

    `code` is the code of the local protocol (`wire.frames.Code`) to answer with; `fatal` tells whether the stream can be
    read on: a wrong column refuses one frame, a wrong length or shape ends the session. `seq` is the refused frame's client
    sequence, where the decoder got that far and the caller has it from nowhere else.
    """

    def __init__(self, text: str, *, code: str = "protocol", fatal: bool = True, seq: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.fatal = fatal
        self.seq = seq
