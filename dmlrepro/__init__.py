"""dmlrepro: losses, samplers and metrics of deep metric learning. Import the module you need; this file has none."""


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    try:
        return metadata.version(__name__)
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH that was never installed
        return "0+unknown"
