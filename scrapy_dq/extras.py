"""The installation command for an optional part of scrapy_dq."""


def pip_install(extra: str) -> str:
    """Return the command that installs the packages of *extra* for this Python.

    The command names each package, because `scrapy-dq[extra]` works only if pip can find scrapy-dq.
    """
    # Imported here, because commands need these modules only for an error.
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        listed = [Requirement(each) for each in requires("scrapy-dq") or ()]
    except PackageNotFoundError:  # the package was copied, not installed
        return f"install the packages of the extra {extra!r} of scrapy_dq"
    named = [each.name for each in listed if each.marker and each.marker.evaluate({"extra": extra})]
    return f"pip install {' '.join(named)}"
