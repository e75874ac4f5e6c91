"""What engines ask for and our ops have no rule for."""


def refuse(**options: bool) -> None:
    """Raise NotImplementedError, by name, for what is on."""
    for name, on in options.items():
        if on:
            raise NotImplementedError(f"{name}: expected it to be off, for our ops have no such rule")
