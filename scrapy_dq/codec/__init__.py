"""Request <-> bytes, versioned, safe; and the items of a Queue."""

from scrapy_dq.codec.items import Items
from scrapy_dq.codec.requests import FORMAT, CannotDecode, CannotEncode, Codec

__all__ = ["FORMAT", "CannotDecode", "CannotEncode", "Codec", "Items"]
