"""Converts requests to bytes and back, with a format number and without running code.

An entry is one byte, the format, and then either a msgpack map of the attributes that differ from their
defaults, or the output of the project's own serializer (serializer.py).
Bytes from Redis run no code and choose no path of a file. A name in them can only refer to a callback of this
spider, to an imported Request class, or to a class that `classes.py` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import getattr_static
from operator import attrgetter
from typing import Any

from scrapy import Request, Spider

from scrapy_dq.codec import attributes, building, formats
from scrapy_dq.codec.attributes import CLASS, DEFAULTS, KEYS
from scrapy_dq.codec.callbacks import Callbacks
from scrapy_dq.codec.classes import Classes
from scrapy_dq.codec.refusing import CannotDecode, CannotEncode, CannotServe, reason_of, refusing
from scrapy_dq.codec.serializer import Serializer, arguments_of, dict_of
from scrapy_dq.codec.shapes import attributes_of, slots_of
from scrapy_dq.codec.short import lengthen, shorten
from scrapy_dq.codec.unfit import NotHere, Unfit, exactly
from scrapy_dq.codec.values import Values

FORMAT = formats.REQUEST
"""The first byte of a stored request. A different layout, or a new meaning of a key, needs a new format."""

_MARK = bytes((FORMAT,))
_CALLBACKS = ("callback", "errback")


@dataclass(slots=True)
class _Plan:
    """How requests of one class are written and read."""

    name: str
    """The class as entries name it: "module.QualName"; empty for Request itself."""
    writers: list[tuple[str, int, Any, Callable[[Any], Any]]]
    """Name, key, default, and writing function of each attribute. A value is written only if it is neither
    falsy nor equal to the default."""
    read: Callable[[Request], tuple[Any, ...]]
    """Returns a tuple of the values of the attributes in `writers`, and one more value, which is ignored."""
    readers: dict[Any, tuple[str, Callable[[Any], Any]]]
    added: list[str]
    """Attributes that a subclass adds. They are always written, because their defaults are unknown."""
    is_from_scrapy: bool
    """Whether Scrapy defines the class. Then the effect of its constructors on stored attributes is known."""


class Codec:
    """Encodes and decodes the requests of one spider; for use in one thread."""

    def __init__(
        self,
        spider: Spider,
        *,
        types: Sequence[str] = (),
        spider_modules: Sequence[str] = (),
        schemes: Collection[str] = ("http", "https"),
        max_bytes: int = 1_048_576,
        serializer: Serializer | None = None,
    ) -> None:
        """Bind to *spider*, as its class is now.

        Args:
            types: dotted names of classes that values may have besides the project's own (DQ_TYPES).
            spider_modules: SPIDER_MODULES. Their top-level packages and the package of the spider's class
                form the project.
            schemes: schemes of URLs that may be stored and crawled (DQ_URL_SCHEMES).
            max_bytes: maximum size of an entry that is written or read (DQ_MAX_ENTRY_BYTES).
            serializer: writes entries instead of msgpack, and reads its own entries (SCHEDULER_SERIALIZER).
        """
        packages = {name.partition(".")[0] for name in (*spider_modules, type(spider).__module__)}
        self._max_bytes = max_bytes
        self._values = Values(Classes(packages - {"scrapy"}, types), max_bytes)
        self._request_classes: dict[str, type[Request]] = {}
        self._plans: dict[type[Request], _Plan] = {}
        self.serializer = serializer
        callbacks = Callbacks(spider, packages)
        self._check_meta = attributes.meta_check(types, callbacks.method_of)
        flat = {
            "url": attributes.url_check(schemes),
            "method": attributes.method,
            "headers": attributes.headers,
            "body": lambda value: exactly(value, bytes),
            "encoding": attributes.encoding,
        }
        nested = {
            "cookies": attributes.cookies,
            "meta": self._check_meta,
            "priority": attributes.priority,
            "dont_filter": attributes.anything,
            "flags": lambda value: exactly(value, list),
            "cb_kwargs": lambda value: exactly(value, dict),
        }
        names = dict.fromkeys(_CALLBACKS, callbacks.name_of)
        methods = dict.fromkeys(_CALLBACKS, callbacks.method_of)
        lowered = {name: _after(check, self._values.lower) for name, check in nested.items()}
        lifted = {name: _after(self._values.lift, check) for name, check in nested.items()}
        self._write = {**names, **flat, "encoding": attributes.stored_encoding, **lowered}
        self._read = {**methods, **flat, **lifted}
        self._checks = {**methods, **flat, **nested, **_ADDED}
        self._spider, self._name_of = spider, callbacks.name_of

    def encode(self, request: Request) -> bytes:
        """Return the entry of *request*; raise only CannotEncode, whatever the request contains."""
        try:
            cls = type(request)
            plan = self._plans.get(cls) or self._plan(cls)
            payload = self._payload(request, plan)
            formats.check_size(payload, self._max_bytes)
            if not plan.is_from_scrapy:
                self._verify(plan, request, payload)
        except Exception as error:
            raise CannotEncode(reason_of(error)) from error
        return payload

    def decode(self, payload: bytes) -> Request:
        """Return the request of an entry; raise only CannotDecode, whatever the bytes are.

        A start request gets `meta["dq_seeded"]`, because its retries and redirects copy its `meta`, and must
        not count as start requests.

        Raises:
            CannotServe: other workers may be able to decode it.
        """
        try:
            if payload[:1] == _MARK and len(payload) <= self._max_bytes:  # nearly all entries
                return self._request(lengthen(self._values.unpack(payload[1:])))
            payload = formats.untraced(payload)
            kind = payload[0] if payload else None
            formats.check_size(payload, self._max_bytes)
            if kind == FORMAT:
                return self._request(lengthen(self._values.unpack(payload[1:])))
            if kind != formats.SERIALIZED:
                raise Unfit(f"its format is {kind}; this version reads format {FORMAT}")
            if self.serializer is None:
                raise NotHere("a SCHEDULER_SERIALIZER wrote it, and this worker has none")
            return self._built(*self._arguments_of(self.serializer.loads(payload[1:])))
        except NotHere as error:
            raise CannotServe(reason_of(error)) from error
        except Exception as error:  # also MemoryError, RecursionError and any error of a constructor
            raise CannotDecode(reason_of(error)) from error

    def build(self, written: Mapping[str, Any]) -> Request:
        """Return a request from a dict of its attributes that a person or a program has written.

        Callbacks are names of the spider's methods. The request passes every check of a stored one, although
        it is not stored yet. Raises only CannotDecode, whatever the dict contains.
        """
        with refusing(CannotServe):
            for name in written:
                if name not in KEYS:
                    raise Unfit(f"{name!a:.100} is not an attribute of a request ({', '.join(KEYS)})")
            if "url" not in written:
                raise Unfit("it has no url")
            attributes.check_written(written)
            named = {name: self._read[name](written[name]) for name in _CALLBACKS if written.get(name)}
            request = Request(**{**written, **named})
            self.encode(request)
        return request

    def value(self, packed: bytes) -> Any:
        """Unpack a value of the types that `meta` may hold; raise only CannotDecode."""
        with refusing():
            return self._values.lift(self._values.unpack(packed))

    def packed(self, value: Any) -> bytes:
        """Pack a value into bytes that are the same in each process; raise only CannotEncode."""
        with refusing(CannotEncode, CannotEncode):
            return self._values.pack(self._values.lower(value))

    def plain(self, payload: bytes) -> Request:
        """Return a Request that identifies the page of an entry that `decode` could not read.

        Raises:
            CannotDecode: the page cannot be identified either.
        """
        with refusing():
            payload = formats.untraced(payload)
            if payload[:1] != _MARK:
                raise Unfit("only the project's serializer can read it")
            entry = lengthen(self._values.unpack(payload[1:]))
            names = ("url", "method", "headers", "body", "dont_filter")
            stored = {name: self._read[name](entry[KEYS[name]]) for name in names if KEYS[name] in entry}
            return building.plain(stored)

    def check_size(self, payload: bytes) -> None:
        """Raise CannotDecode if *payload* is larger than DQ_MAX_ENTRY_BYTES."""
        with refusing():
            formats.check_size(payload, self._max_bytes)

    def check_made(self, request: Request) -> None:
        """Check the attributes that a start payload may have set in *request*.

        The spider's own code made the request from the payload. The request's callbacks and values may be of
        kinds that cannot be stored.

        Raises:
            CannotDecode: its URL, method or `meta` may not be in a stored request.
        """
        with refusing():
            for name in ("url", "method"):
                self._write[name](getattr(request, name))
            self._check_meta(request.meta)

    def from_dict(self, values: Any) -> Request:
        """Return the request of a dict from `Request.to_dict()`, after the checks of `decode`.

        Raises:
            CannotDecode: as `decode` does.
        """
        with refusing():
            return self._built(*self._arguments_of(values))

    def _payload(self, request: Request, plan: _Plan) -> bytes:
        if self.serializer is None:
            return _MARK + self._values.pack(shorten(self._entry(request, plan)))
        values = dict_of(request, self._spider, self._name_of)
        if self._arguments_of(values)[0] is not type(request):
            raise Unfit(f"{values['_class']} is not the name of its class")
        return bytes((formats.SERIALIZED,)) + self.serializer.dumps(values)

    def _arguments_of(self, values: Any) -> tuple[type[Request], dict[str, Any]]:
        return arguments_of(values, self._checks, self._request_class)

    def _entry(self, request: Request, plan: _Plan) -> dict[Any, Any]:
        entry: dict[Any, Any] = {CLASS: plan.name} if plan.name else {}
        name = ""
        try:
            for writer, value in zip(plan.writers, plan.read(request), strict=False):
                if value:  # most requests set four of thirteen attributes
                    name, key, default, write = writer
                    if value != default:
                        entry[key] = write(value)
            for name in plan.added:
                entry[name] = self._values.lower(getattr(request, name))
        except Unfit as unfit:
            unfit.path.append(name)
            raise
        return entry

    def _verify(self, plan: _Plan, request: Request, payload: bytes) -> None:
        """Decode *payload*, and raise Unfit if the result differs from *request*.

        A subclass's constructor may change its arguments, and `attributes` may not list all of them.
        """
        try:
            again = self.decode(payload)
        except CannotDecode as error:
            raise Unfit(f"{plan.name} cannot be rebuilt from its `attributes`: {error}") from error
        if "dq_seeded" not in request.meta:
            again.meta.pop("dq_seeded", None)
        listed = type(request).attributes
        more = [name for name in attributes_of(request) if not _is_made(request, name)]
        names = [name for name in (*KEYS, *more) if name not in listed]
        same = self._is_same(payload, self._payload(again, plan))
        names += () if same else listed
        changed = [n for n in names if not _equivalent(getattr(request, n, None), getattr(again, n, None))]
        if changed or not same:
            raise Unfit(
                f"{plan.name} is rebuilt with another {', '.join(changed) or 'content'}. A subclass with "
                f"attributes = (*Request.attributes, ...) that lists all is stored fully"
            )

    def _is_same(self, payload: bytes, other: bytes) -> bool:
        # This compares bytes, not attributes: NaN differs from itself, and instances may have no __eq__.
        if payload == other or self.serializer is None:
            return payload == other
        # The serializer may write different bytes for equal requests.
        return _equivalent(self.serializer.loads(payload[1:]), self.serializer.loads(other[1:]))

    def _request(self, entry: Any) -> Request:
        class_name = entry.pop(CLASS, None)
        cls = Request if class_name is None else self._request_class(class_name)
        plan = self._plans.get(cls) or self._plan(cls)
        kwargs: dict[str, Any] = {}
        name = ""
        try:
            for key, value in entry.items():
                name, read = plan.readers.get(key) or (f"attribute {key!a:.100}", attributes.unknown)
                kwargs[name] = read(value)
        except Unfit as unfit:
            unfit.path.append(name)
            raise
        return self._built(cls, kwargs)

    def _built(self, cls: type[Request], kwargs: dict[str, Any]) -> Request:
        if "url" not in kwargs:
            raise Unfit("it has no url")
        meta = kwargs.get("meta")
        if meta and meta.get("is_start_request"):
            meta["dq_seeded"] = True
        if cls is Request:
            return building.plain(kwargs)
        # A subclass gets all attributes, as from request_from_dict(), because its own defaults may differ.
        defaults = {name: DEFAULTS[name] for name in cls.attributes if name in DEFAULTS}
        return building.of_class(cls, {**defaults, **kwargs})

    def _plan(self, cls: type[Request]) -> _Plan:
        name = "" if cls is Request else f"{cls.__module__}.{cls.__qualname__}"
        if name and ("<locals>" in name or self._request_class(name) is not cls):
            raise Unfit(f"{name} is not a class that another worker can find by its name")
        known = [attribute for attribute in cls.attributes if attribute in KEYS]
        added = [attribute for attribute in cls.attributes if attribute not in KEYS]
        writers = [(a, KEYS[a], DEFAULTS.get(a), self._write[a]) for a in known]
        readers: dict[Any, Any] = {KEYS[a]: (a, self._read[a]) for a in known}
        readers.update({a: (a, _after(self._values.lift, _ADDED.get(a, attributes.anything))) for a in added})
        bases = [base for base in cls.__mro__ if base not in Request.__mro__]
        is_from_scrapy = all(base.__module__.partition(".")[0] == "scrapy" for base in bases)
        read = attrgetter(*known, "__class__")  # with a single name, it would not return a tuple
        plan = self._plans[cls] = _Plan(name, writers, read, readers, added, is_from_scrapy)
        return plan

    def _request_class(self, name: Any) -> type[Request]:
        if name not in self._request_classes:
            found = Request.__subclasses__()
            for cls in found:  # the loop extends it; if two classes have one name, the newer one wins
                self._request_classes[f"{cls.__module__}.{cls.__qualname__}"] = cls
                found.extend(cls.__subclasses__())
        try:
            return self._request_classes[name]
        except KeyError:
            raise NotHere(f"{name!a:.200} is not an imported subclass of Request") from None


_ADDED = {"dumps_kwargs": attributes.json_data}
"""Checks of attributes that subclasses of Request add."""
_OWN = {*dict(slots_of(Request)), *attributes_of(Request("data:,"))}
"""Attributes of every request, in slots or in its __dict__, depending on the version of Scrapy."""


def _is_made(request: Request, name: str) -> bool:
    """Return whether every request has the attribute, or a cached property computes it."""
    return name in _OWN or isinstance(getattr_static(type(request), name, None), cached_property)


def _equivalent(a: Any, b: Any, depth: int = 16) -> bool:
    """Compare two values. If their class has no __eq__, compare their attributes."""
    if a is b:
        return True
    if type(a) is not type(b) or not depth:
        return False
    if type(a) is dict:
        return _equivalent([*a.items()], [*b.items()], depth)
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(_equivalent(*pair, depth - 1) for pair in zip(a, b, strict=True))
    own: Any = type(a).__eq__
    if own is not object.__eq__:
        try:
            return bool(a == b) or (type(a) is float and a != a and b != b)
        except Exception:  # for example, comparing numpy arrays gives no single answer
            return False
    ours, theirs = (attributes_of(each) for each in (a, b))
    return ours.keys() == theirs.keys() and all(_equivalent(ours[n], theirs[n], depth - 1) for n in ours)


def _after(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: second(first(value))
