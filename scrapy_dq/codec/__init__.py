"""Request <-> bytes, versioned, safe."""

from scrapy_dq.codec.requests import FORMAT, CannotDecode, CannotEncode, Codec

__all__ = ["FORMAT", "CannotDecode", "CannotEncode", "Codec"]
