"""The products of the bookshop, made from a seed, so that they are the same on every machine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

PRODUCTS = 1_000
CATEGORIES = 50
PER_PAGE = 20

_ADJECTIVES = [
    "Silent",
    "Crooked",
    "Borrowed",
    "Winter",
    "Paper",
    "Second",
    "Hollow",
    "Patient",
    "Copper",
    "Distant",
    "Plain",
    "Salted",
]
_NOUNS = [
    "Harbour",
    "Ledger",
    "Orchard",
    "Compass",
    "Lantern",
    "Kitchen",
    "Atlas",
    "Letter",
    "Garden",
    "Clock",
    "Bridge",
    "Piano",
]
_ENDINGS = [
    "of the North",
    "for Beginners",
    "at Noon",
    "in Winter",
    "without Maps",
    "by Hand",
    "after Rain",
    "on Foot",
]
_THEMES = [
    "Travel",
    "Poetry",
    "History",
    "Cookery",
    "Physics",
    "Music",
    "Fiction",
    "Gardens",
    "Logic",
    "Sailing",
]
_SHELVES = ["Classics", "New", "Pocket", "Illustrated", "Young Readers"]
_SENTENCES = (
    "A book that was lent twice and came back once.",
    "The author counts the stairs so that you need not.",
    "Every chapter ends where the kettle boils.",
    "Half of it is footnotes, and they are the better half.",
    "It was written on trains and reads well on them.",
    "Nobody in it is late, and that is the plot.",
)


@dataclass(frozen=True)
class Product:
    """One book for sale."""

    number: int
    upc: str
    title: str
    category: int
    pence: int
    stock: int
    description: str
    related: tuple[int, ...]

    @property
    def path(self) -> str:
        return f"/product/{self.number}"

    @property
    def price(self) -> str:
        return f"£{self.pence // 100}.{self.pence % 100:02d}"


@dataclass(frozen=True)
class Category:
    """One shelf. Each of its pages lists at most `PER_PAGE` products."""

    number: int
    name: str
    products: tuple[Product, ...]

    @property
    def pages(self) -> int:
        return max(1, -(-len(self.products) // PER_PAGE))

    def path(self, page: int = 1) -> str:
        return f"/category/{self.number}" + (f"?page={page}" if page > 1 else "")


class Catalogue:
    """All products and categories, made from a seed."""

    def __init__(self, seed: int = 1) -> None:
        chance = random.Random(seed)
        # Shelves have different lengths, so that some listings have several pages.
        weights = [1 + number % 5 for number in range(CATEGORIES)]
        self.products = tuple(
            Product(
                number=number,
                upc=f"{chance.getrandbits(48):012x}{number:04x}",
                title=" ".join(chance.choice(words) for words in (_ADJECTIVES, _NOUNS, _ENDINGS)),
                category=chance.choices(range(CATEGORIES), weights)[0],
                pence=chance.randrange(299, 5_999),
                stock=chance.randrange(40),
                description=" ".join(chance.sample(_SENTENCES, 3)),
                related=tuple(chance.sample(range(PRODUCTS), 4)),
            )
            for number in range(PRODUCTS)
        )
        self.categories = tuple(
            Category(
                number=number,
                name=f"{_SHELVES[number % len(_SHELVES)]} {_THEMES[number // len(_SHELVES)]}",
                products=tuple(product for product in self.products if product.category == number),
            )
            for number in range(CATEGORIES)
        )

    @cached_property
    def paths(self) -> frozenset[str]:
        """Every page of the shop, as path and query."""
        listings = {
            category.path(page) for category in self.categories for page in range(1, category.pages + 1)
        }
        return frozenset({"/"} | listings | {product.path for product in self.products})
