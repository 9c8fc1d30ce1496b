"""What is wrong with the settings, all of it at once."""


class ConfigError(Exception):
    """The operator's: nothing was started. `problems` are sentences that say what to change, and where."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
