"""Unusual requests are not lost, and do not block the crawl."""

from __future__ import annotations

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import keys
from support.given import Tree
from support.tree_spider import spider_of
from support.waiting import free_port

PRIORITIES = spider_of("""
    def parse(self, response):
        yield scrapy.Request(response.urljoin("/true?s=0"), self.leaf, priority=True)
        none = scrapy.Request(response.urljoin("/none?s=0"), self.leaf)
        none.priority = None
        yield none
        yield scrapy.Request(response.urljoin("/huge?s=0"), self.leaf, priority=2**70)
        yield scrapy.Request(response.urljoin("/plain?s=0"), self.leaf)
""")

POLLING = spider_of("""
    class Demanding(scrapy.Request):
        def __init__(self, url, token, **more):
            super().__init__(url, **more)

    def parse(self, response):
        url = response.urljoin("/poll?s=0")
        yield scrapy.Request(url, self.poll, meta={"dq_local": True}, dont_filter=True)
        yield self.Demanding(url + "&other", "token", callback=self.poll, dont_filter=True)

    def poll(self, response):
        path = page_path(response)
        self.record("poll", path)
        polls = getattr(self, path, 0) + 1
        setattr(self, path, polls)
        if polls < 4:
            yield response.request
""")

TIMELESS = spider_of("""
    def parse(self, response):
        letters = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000)))
        yield scrapy.Request(f"http://{letters}/", self.leaf)
        for query in ("far=5000", "charset=punycode", "charset=idna", "s=0"):
            yield scrapy.Request(response.urljoin(f"/odd?{query}"), self.leaf)
""")


def test_a_host_name_that_python_would_encode_for_hours_does_not_block_a_worker(tree: Tree) -> None:
    """Links and redirects have hosts of 20,000 letters. Pages declare an encoding that is for host names."""
    _, project = tree(spider=TIMELESS, pages=1)
    worker = project.run_to_end(timeout_s=60)
    assert project.count() == {"/odd?s=0": 1}
    assert worker.text.count("is dropped: its host has more than 1,000 characters") == 1
    assert worker.text.count("characters are too many for a part of a host name") >= 1
    assert worker.stats["dq/failed"] == 2


BRACKETS = spider_of("""
    def parse(self, response):
        for link in ("//\uff3b", "//a.example\uff3d/", "/plain?s=0", "/plain?s=0&in=[query]"):
            yield response.follow(link, self.leaf)
            yield response.follow(link, self.leaf, dont_filter=True)
""")


def test_a_link_that_cannot_be_parsed_is_dropped(tree: Tree) -> None:
    """Scrapy turns full-width brackets into real ones. Then the fingerprint or slot raises an error."""
    _, project = tree(spider=BRACKETS, pages=1)
    worker = project.run_to_end(timeout_s=30)
    assert project.count() == dict.fromkeys(["/plain?s=0", "/plain?s=0&in=%5Bquery%5D"], 2)
    assert worker.text.count("is dropped: its URL cannot be parsed (Invalid IPv6 URL)") == 4
    assert "Unexpected error" not in worker.text


def test_a_priority_of_another_type_loses_nothing(tree: Tree) -> None:
    """True counts as 1, and a number that is too large is clamped. None makes the request local."""
    _, project = tree(spider=PRIORITIES, pages=1)
    worker = project.run_to_end(timeout_s=30)
    assert project.count() == dict.fromkeys(["/true?s=0", "/none?s=0", "/huge?s=0", "/plain?s=0"], 1)
    assert "Redis does not answer" not in worker.text


def test_a_local_request_can_yield_itself_again(tree: Tree) -> None:
    """A callback may poll with `yield response.request`. All requests are crawled; then the parent is acked.

    This is also true for a request class that Scrapy cannot copy.
    """
    _, project = tree(spider=POLLING, pages=1)
    worker = project.run_to_end(timeout_s=30)
    assert project.count("poll") == {"/poll?s=0": 4, "/poll?s=0&other": 4}
    assert worker.stats["dq/acked"] == 1


COOKIES = spider_of("""
    custom_settings = {"RETRY_TIMES": 1, "DOWNLOADER_MIDDLEWARES": {"tree_project.spiders.spider.Baker": 750}}

    def parse(self, response):
        yield response.follow("/again?flaky=1", self.again)
        yield scrapy.Request("http://127.0.0.1:%d/gone", self.leaf)

    def again(self, response):
        self.record("cookies", response.request.headers["Cookie"].decode())


class Baker:
    def process_response(self, request, response, spider=None):
        if response.url.endswith("/p/0"):
            large = [f"c{n}=" + "x" * 15_000 + "; Path=/gone" for n in range(60)]
            response.headers["Set-Cookie"] = ["small=1; Path=/again", *large]
        return response
""")


def test_the_cookies_of_a_site_are_not_stored_with_each_retry(redis_url: str, tree: Tree) -> None:
    """A site's cookies can have 900 kB, so requests are stored without them. The worker adds them again."""
    _, project = tree(spider=COOKIES % free_port(), pages=1)
    project.run_to_end(timeout_s=30)
    assert project.count("cookies") == {"small=1": 1}
    client = connect_url(redis_url)
    records = client.lrange(keys.prefix(project.name) + "failed", 0, -1)
    client.close()
    assert [(len(record) < 2_000, b"retry_times" in record) for record in records] == [(True, True)]


SCHEMES = spider_of("""
    async def start(self):
        yield scrapy.Request("file://" + __file__ + "?start", self.file)
        yield scrapy.Request(self.start_urls[0])
        yield scrapy.Request("ftp://127.0.0.1:1/", errback=self.on_ftp)
        self.crawler.signals.connect(self.idle, scrapy.signals.spider_idle)

    def idle(self):
        self.crawler.signals.disconnect(self.idle, scrapy.signals.spider_idle)
        for more, meta in ("?kept", None), ("?kept-local", {"dq_local": True}):
            self.crawler.engine.crawl(scrapy.Request("file://" + __file__ + more, self.file, meta=meta))

    def on_ftp(self, failure):
        yield scrapy.Request("file://" + __file__ + "?of-ftp", self.file)

    def file(self, response):
        self.record("file", response.url.partition("?")[2])
        if response.url.endswith("?start"):
            yield response.follow("?child", self.file)

    def parse(self, response):
        url = "file://" + __file__
        for more in ("?link", "?another"):
            yield response.follow(url + more, self.file, dont_filter=True)
        yield response.follow(url + "?local", self.file, meta={"dq_local": True})
        yield scrapy.Request("FTP://me:s3cret@127.0.0.1:1/x", lambda response: None, errback=self.file)
        yield scrapy.Request("data:,?data", self.file)
        yield scrapy.Request("data:text/html,by the page", self.of_the_page)
        here = {"dq_local": True}
        yield response.follow("/local?s=0", self.of_the_page, meta=here, cb_kwargs={"meta": here})
        yield response.follow("/plain?s=0", self.leaf)

    def of_the_page(self, response, meta=None):
        yield scrapy.Request(f"file://{__file__}?of-{response.url[:4]}", self.file, meta=meta)
""")


def test_a_page_cannot_lead_to_a_file_of_this_host(tree: Tree) -> None:
    """A spider may open files. File requests from start() are crawled, and also links in these files.

    Links from the web or an FTP server must not lead to files, even if the spider keeps them until it is
    idle.
    """
    _, project = tree(spider=SCHEMES, pages=1)
    worker = project.run_to_end(timeout_s=30)
    assert project.count() == {"/plain?s=0": 1}
    assert project.count("file") == dict.fromkeys(["start", "child", "local", "data"], 1)
    assert worker.stats["dq/scheme_dropped"] == 8
    told = (
        " is dropped: its scheme is not in DQ_URL_SCHEMES (http, https), and a web page may have led to it. "
    )
    assert worker.text.count(told) == worker.text.count(" is dropped: ") == 1
    assert worker.stats.get("dq/failed", 0) == 0


FILES = [
    "start",
    "child",
    "link",
    "another",
    "local",
    "data",
    "of-data",
    "of-http",
    "of-ftp",
    "kept",
    "kept-local",
]


def test_a_scheme_that_is_listed_is_stored(tree: Tree) -> None:
    _, project = tree(spider=SCHEMES, pages=1)
    worker = project.run_to_end(timeout_s=30, settings={"DQ_URL_SCHEMES": "http,file"})
    assert project.count("file") == dict.fromkeys(FILES, 1)
    assert worker.stats["dq/scheme_dropped"] == 1
    assert "ftp" in worker.text.lower()
    assert "s3cret" not in worker.text
