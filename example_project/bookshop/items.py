"""The items of the spider `books`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Book:
    """A product of the bookshop."""

    upc: str
    title: str
    category: str
    price: float
    stock: int
    description: str
    url: str


@dataclass
class Page:
    """A page of any other site."""

    url: str
    title: str | None
