"""What counts as text where people send some."""


def is_text(value: str) -> bool:
    """Whether a string has a UTF-8 form: arguments of a command, and escapes of JSON, may hold lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
