"""Request <-> bytes, versioned, safe."""

from scrapy_dq.codec.requests import FORMAT, CannotDecode, CannotEncode, Codec
from scrapy_dq.codec.serializer import BadSerializer, Serializer

__all__ = ["FORMAT", "BadSerializer", "CannotDecode", "CannotEncode", "Codec", "Serializer"]
