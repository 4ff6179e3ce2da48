"""Convert requests, and items of a Queue, to bytes and back. Decoding runs no code from the bytes."""

from scrapy_dq.codec.building import copied
from scrapy_dq.codec.classes import BadType
from scrapy_dq.codec.items import ForeignEntry, Items
from scrapy_dq.codec.refusing import CannotDecode, CannotEncode, CannotServe
from scrapy_dq.codec.requests import FORMAT, Codec
from scrapy_dq.codec.serializer import BadSerializer, Serializer

__all__ = [
    "FORMAT", "BadSerializer", "BadType", "CannotDecode", "CannotEncode", "CannotServe", "Codec",
    "ForeignEntry", "Items", "Serializer", "copied",
]  # fmt: skip
