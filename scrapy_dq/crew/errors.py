"""The errors of a crew."""


class CrewError(Exception):
    """The crew cannot do its task; the message is one line for the user."""


class NoLogs(CrewError):
    """The workers' logs cannot be written."""


class Interrupted(Exception):
    """The user asked to stop immediately."""
