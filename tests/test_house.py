"""House rules about imports, internals of Scrapy, Lua files, public names, and linters."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "scrapy_dq"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LUA = sorted(PACKAGE.rglob("*.lua"))

# adoption/source.py reads the keys of an adopted scrapy-redis crawl, which belong to no frontier.
MAY_IMPORT_REDIS = {
    "backend/clients.py", "backend/cluster.py", "backend/connection.py",
    "backend/sentinel.py", "embedded/server.py", "adoption/source.py",
}  # fmt: skip
ENGINE_INSIDES = {
    "_slot",
    "nextcall",
    "inprogress",
    "remove_request",
    "handle_spider_error",
    "handle_spider_output_async",
    "call_spider_async",
    "_handle_downloader_output",
}
HANDLERS_INSIDES = {"_get_handler", "_pool", "getConnection", "retryAutomatically", "_handshakeDone"}
# The layers of the package, from top to bottom. No module imports from a layer above its own. Each part of
# the frontier is a layer.
LAYERS = (
    "scheduler dupefilter pipelines spiders connection addon commands",
    "web",
    "adoption exports pushing queue",
    "items",
    "crew",
    "inspection",
    "scheduling",
    "revisits",
    "factory stats",
    "start_urls",
    "environment backend",
    "codec settings",
    "sharding",
    "frontier.archive",
    "frontier.admin",
    "frontier.worker",
    "frontier embedded extras filesystem gc_tuning hostnames refusal repeated scrapy_redis signals text",
)


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def in_frontier(path: Path) -> bool:
    return name_of(path).startswith("frontier/")


def imported_modules(path: Path) -> Iterator[str]:
    """Yield every module that *path* imports, at its top or inside functions, by its full name."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            # `from scrapy_dq import codec` also imports a module.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def insides(path: Path, names: set[str]) -> Iterator[str]:
    """Yield each place where *path* uses one of the private *names*, as an attribute or with getattr()."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
        if isinstance(name, str) and name in names:
            yield f"{name_of(path)}:{getattr(node, 'lineno', 0)} {name}"


@pytest.mark.parametrize("path", [path for path in SOURCES if in_frontier(path)], ids=name_of)
def test_the_frontier_imports_neither_scrapy_nor_modules_above_it(path: Path) -> None:
    """Scrapy could be replaced without a change in frontier/."""
    modules = {f"{module}." for module in imported_modules(path)}
    assert not {m for m in modules if m.startswith("scrapy.")}
    assert not {m for m in modules if m.startswith("scrapy_dq.") and not m.startswith("scrapy_dq.frontier.")}


def test_only_the_frontier_and_clients_import_redis() -> None:
    """Other files get their clients from the files in MAY_IMPORT_REDIS."""
    importers = {
        name_of(path)
        for path in SOURCES
        if not in_frontier(path) and any(f"{m}.".startswith("redis.") for m in imported_modules(path))
    }
    assert importers <= MAY_IMPORT_REDIS


@pytest.mark.parametrize(
    ("file", "names"), [("engine_hooks.py", ENGINE_INSIDES), ("download_hooks.py", HANDLERS_INSIDES)]
)
def test_only_one_file_uses_the_internals(file: str, names: set[str]) -> None:
    """When Scrapy changes its engine or its download handlers, only one file needs a change."""
    found = [where for path in SOURCES if path.name != file for where in insides(path, names)]
    assert not found


def test_no_key_is_found_by_a_pattern_and_no_database_is_flushed() -> None:
    """No key of another program may ever be deleted, so no file both scans for keys and deletes keys."""
    never = re.compile(r"['\"](KEYS|FLUSHALL|FLUSHDB)\b|\.flush(all|db)\(|\.keys\([^)]")
    scans, removes = re.compile(r"['\"]SCAN\b|\bscan(_iter)?\("), re.compile(r"\.delete\(|(?i:unlink)")
    for path in SOURCES + LUA:
        text = path.read_text()
        assert not never.search(text), name_of(path)
        assert not (scans.search(text) and removes.search(text)), name_of(path)


def layer_of(module: str) -> int:
    """Return a module's layer in LAYERS, from 0 at the top, or -1 for a module that LAYERS does not name."""
    parts = module.split(".")[1:]
    for name in (".".join(parts[:2]), parts[0] if parts else ""):
        for number, layer in enumerate(LAYERS):
            if name in layer.split():
                return number
    return -1


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_point_downward(path: Path) -> None:
    """A reader can begin at the top of the package. Each part needs only the layers below it."""
    module = ".".join(["scrapy_dq", *path.relative_to(PACKAGE).with_suffix("").parts])
    if module == "scrapy_dq.frontier.__init__":
        return  # it exports names from all parts of the frontier to other programs
    ours = {name for name in imported_modules(path) if name.startswith("scrapy_dq.")}
    assert not {name for name in ours if layer_of(name) < layer_of(module)}


WITHOUT_SHARDS = ("frontier/worker/", "scheduling/", "queue/")


def words_of(path: Path) -> Iterator[str]:
    """Yield the names and the strings in the code of *path*, without docstrings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        body = getattr(node, "body", None) if isinstance(node, documented) else None
        for each in body or ():
            # A string that stands alone is the docstring of this node, or of the name before it.
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                each.value.value = ""
    for node in ast.walk(tree):
        for name in ("id", "attr", "name", "arg", "value", "module"):
            if isinstance(word := getattr(node, name, None), str):
                yield word


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if name_of(path).startswith(WITHOUT_SHARDS)], ids=name_of
)
def test_code_for_one_shard_does_not_mention_shards(path: Path) -> None:
    """Almost all crawls have one shard, so a reader of the code for one shard need not know shards.

    `sharding.make` chooses the worker. The code for several shards is in `sharding/`.
    """
    assert not [word for word in words_of(path) if re.search("shard(?!ing.make)", word, re.IGNORECASE)]


def test_a_worker_with_one_shard_loads_no_code_for_several_shards() -> None:
    code = "import sys, scrapy_dq.queue.member, scrapy_dq.scheduling.scheduler; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("scrapy_dq.sharding")}
    assert loaded == {"scrapy_dq.sharding", "scrapy_dq.sharding.make"}


@pytest.mark.parametrize("path", LUA, ids=name_of)
def test_a_lua_file_begins_with_its_contract(path: Path) -> None:
    """The first line describes the file. Moves and transitions have all header words, in this order."""
    text = path.read_text()
    assert re.match(r"-- [a-z, -]+: ", text)
    if path.parent.name in ("moves", "transitions"):
        words = re.findall(r"^-- (ARGS|RETURNS|COST|CRASH) ", text, re.MULTILINE)
        assert words == ["ARGS", "RETURNS", "COST", "CRASH"] * (len(words) // 4)
        assert words


def test_lua_files_have_unique_names() -> None:
    """Scripts include Lua files by name."""
    assert len({path.stem for path in LUA}) == len(LUA)


# Programs import these names, and settings contain them, so they must not change.
PUBLIC = {
    "scrapy_dq": "Addon DupeFilter Queue RedisCrawlSpider RedisMixin RedisPipeline RedisSpider RevisitPolicy "
    "Scheduler SharedStats ShutDown get_redis get_redis_from_settings",
    "scrapy_dq.frontier": "Dead Entry Failed Frontier Overview PartitionLimits Retried Worker WorkerOptions "
    "dead failed forget kept limit peek retry shared_stats",
    "scrapy_dq.queue": "FrontierError FrontierLost FrontierRefused FrontierUnavailable Queue ShutDown",
    "scrapy_dq.embedded": "EmbeddedError EmbeddedRedis",
    "scrapy_dq.scheduler": "Scheduler",
    "scrapy_dq.dupefilter": "DupeFilter RFPDupeFilter",
    "scrapy_dq.pipelines": "RedisPipeline",
    "scrapy_dq.spiders": "RedisCrawlSpider RedisMixin RedisSpider",
    "scrapy_dq.connection": "connect_url get_redis get_redis_from_settings",
    "scrapy_dq.commands": "Command",
    "scrapy_dq.web": "app",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_do_not_change(module: str) -> None:
    """Each `__all__` has exactly these names."""
    public = set(importlib.import_module(module).__all__) - {"__version__"}
    assert public == set(PUBLIC[module].split())


@pytest.mark.parametrize(
    "command", ["ruff check . --output-format concise", "ruff format --check .", "mypy --strict"]
)
def test_the_linters_find_nothing(command: str) -> None:
    """The extra `lint` installs ruff and mypy."""
    words = command.split()
    if importlib.util.find_spec(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
