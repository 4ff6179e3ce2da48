"""What goes wrong with a crew."""


class CrewError(Exception):
    """It cannot do what it was asked for; the message is one line for people."""


class Interrupted(Exception):
    """Somebody asked to stop at once."""
