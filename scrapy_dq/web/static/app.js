import { badge, bdi, card, chart, count, el, phaseBadge, printable, rate, setText, span, stateBadge, table, when } from "./parts.js";

const byId = (id) => document.getElementById(id);
const main = byId("main");
const OLD_S = 8; // normally there is a look every second
const KEPT = "dq-token";
let may = { steering: false, settings: [] };
let opened = 0; // how many pages the user has opened; work for an earlier page ends
let seenAt = 0, ageThen = null, trouble = "", isLive = false;

// ---- requests to the server

const token = () => sessionStorage.getItem(KEPT) || "";
const headers = () => (token() ? { Authorization: `Bearer ${token()}` } : {});
const query = (asked) => new URLSearchParams(asked).toString();

const refused = (status, said) => Object.assign(new Error(said), { status });

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers }, cache: "no-store" });
  } catch {
    throw refused(0, "This page's server does not answer: is `scrapy dq web` running?");
  }
  if (answer.ok) return answer;
  let said = `The server answers ${answer.status}`;
  try { said = (await answer.json()).error || said; } catch { /* no JSON */ }
  throw refused(answer.status, said);
}

// Returns the newest look, its age, and the error of a later one. null: no answer, or the user has opened another page.
async function see(asked) {
  const page = opened;
  try {
    const seen = await (await ask(`data?${query(asked)}`)).json();
    return page === opened ? seen : null;
  } catch (error) {
    if (error.status === 401) gate();
    else if (page === opened) age(null, error.message);
    return null;
  }
}

// Returns one look; null: there is none, and the banner shows the error.
async function once(asked) {
  let seen;
  // Without a look and an error, the server is still busy with other looks at Redis: ask again.
  do seen = await see(asked); while (seen && !seen.look && !seen.error);
  if (seen) age(seen.age_s, seen.error);
  return seen && seen.look;
}

// Calls `work` now, and again `seconds` after it has ended, until the user opens another page.
async function repeat(seconds, work) {
  const page = opened;
  while (page === opened) {
    await work();
    await new Promise((go) => setTimeout(go, 1000 * seconds));
  }
}

async function send(order) {
  try {
    const answer = await ask("do", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(order) });
    toast((await answer.json()).done);
    return true;
  } catch (error) {
    toast(error.message, true);
    return false;
  }
}

// ---- age of the data

function age(ageNow, problem) {
  if (ageNow !== null) { seenAt = performance.now() / 1000; ageThen = ageNow; }
  trouble = problem || "";
  drawAge();
}

function drawAge() {
  const old = ageThen === null ? null : ageThen + performance.now() / 1000 - seenAt;
  const bad = trouble !== "" || (isLive && old !== null && old > OLD_S);
  byId("state").dataset.is = bad ? "old" : old === null ? "" : "live";
  setText(byId("state-text"), old === null ? (trouble ? "No data" : "Connecting") : bad ? `${span(old)} old` : isLive ? "Live" : `Read ${span(old)} ago`);
  const banner = byId("banner");
  banner.hidden = !trouble;
  // The banner omits the age: a screen reader would read it every second.
  setText(banner, trouble ? `${trouble}. ${ageThen === null ? "" : "The values below are from before."}` : "");
}
setInterval(drawAge, 1000);

// Calls `show` with each look, or with null if there is no such crawl.
function live(asked, show) {
  isLive = true;
  repeat(1, async () => {
    const seen = await see(asked);
    if (!seen) return;
    age(seen.age_s, seen.error);
    if (seen.look || !seen.found) show(seen.look);
  });
}

// ---- pieces of pages

function crumbs(...links) {
  return el("nav", { class: "crumbs", "aria-label": "Where this is" }, ...links.flatMap(([text, href], at) => [at ? " / " : "", el("a", { href }, bdi(text))]));
}

function heading(text, ...rest) {
  return el("div", { class: "title" }, el("h1", { tabindex: "-1" }, bdi(text)), ...rest);
}

const address = (crawl, ...rest) => ["#/crawl", encodeURIComponent(crawl), ...rest].join("/");

function tabs(crawl, now) {
  const all = [["Overview", ""], ["Events", "events"], ["Failed", "failed"], ["Dead letters", "dead"]];
  return el("nav", { class: "tabs", "aria-label": "Of this crawl" }, ...all.map(([text, page]) =>
    el("a", { href: page ? address(crawl, page) : address(crawl), "aria-current": page === now ? "page" : null }, text)));
}

function toast(text, bad) {
  const node = byId("toast");
  node.className = bad ? "toast bad" : "toast";
  node.textContent = text;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { node.textContent = ""; }, bad ? 12000 : 6000);
}

// Opens a form in a dialog; `act` gets its fields, and returns whether it has succeeded.
function dialog(title, about, fields, button, act) {
  const box = byId("dialog");
  const first = el("button", { type: "submit", class: "first" }, button);
  const form = el("form", { method: "dialog", on: { submit: async (event) => {
    event.preventDefault();
    first.disabled = true;
    const done = await act(new FormData(form));
    first.disabled = false;
    if (done) box.close();
  } } }, el("h2", { id: "dialog-title" }, title), el("p", { class: "quiet" }, ...[about].flat()), ...fields,
    el("div", { class: "actions" }, el("button", { type: "button", on: { click: () => box.close() } }, "Cancel"), first));
  box.replaceChildren(form);
  box.showModal();
}

const button = (text, act, kind = "") => el("button", { type: "button", class: kind, on: { click: act } }, text);

const confirmed = (title, about, text, order) => dialog(title, about, [], text, () => send(order));

// Returns columns of counts; `names` maps titles to fields.
const counts = (names) => Object.entries(names).map(([name, of]) => ({ name, kind: "n", cell: (row) => count(row[of]) }));
const pagesPerSecond = { name: "Pages/s", kind: "n", cell: (row) => rate(row.pages_per_s) };

// ---- all crawls

function crawlsPage() {
  const list = table("All crawls of this Redis", [
    { name: "Crawl", kind: "name", key: (row) => row.crawl, cell: (row) => el("a", { href: address(row.crawl) }, bdi(row.shown)) },
    { name: "Phase", kind: "tight", key: (row) => row.error || row.words?.phase || "", cell: (row) => row.error ? badge(row.error, "bad") : row.words ? phaseBadge(row) : "" },
    ...counts({ Workers: "workers" }), pagesPerSecond,
    ...counts({ Settled: "settled", Left: "left", Failed: "failed", Dead: "dead" }),
  ], "No crawl was found in this Redis.");
  const box = card("In this Redis", "", list.node, list.empty);
  list.empty.hidden = true;
  const where = el("span", { class: "where" });
  main.replaceChildren(heading("Crawls", where), box.node);
  live({ kind: "crawls" }, (look) => {
    setText(where, look.redis);
    list.fill(look.crawls);
    list.empty.hidden = look.crawls.length > 0 || !look.searched;
    setText(box.said, `${count(look.crawls.length)} found${look.searched ? "" : " so far"}${look.full ? "; there may be more" : ""}`);
  });
}

// ---- one crawl

const STATS = [
  ["done", "Done"], ["waiting", "Waiting"], ["in_flight", "In flight"], ["delayed", "Delayed"],
  ["failed", "Failed"], ["dead", "Dead letters"], ["workers", "Workers"], ["seen", "Seen"],
];

function crawlPage(crawl) {
  const where = el("span", { class: "where" }), phase = el("span"), actions = el("div", { class: "actions" });
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Settled, of all requests known" });
  const speed = el("span"), part = el("span"), left = el("span", { class: "right" });
  const values = {};
  const stats = el("dl", { class: "stats" }, ...STATS.map(([name, text]) => {
    const linked = name === "failed" || name === "dead";
    values[name] = linked ? el("a", { href: address(crawl, name) }) : el("span");
    return el("div", {}, el("dt", {}, text), el("dd", {}, values[name]));
  }));
  const wrong = el("div", { class: "wrong" });
  const memory = el("p", { class: "quiet" });
  const top = el("section", { class: "card", "aria-label": "Progress" },
    el("div", { class: "progress" },
      el("div", { class: "line" }, el("p", { class: "big" }, speed, el("small", {}, "pages/s")), part, left), bar, wrong),
    stats);
  const history = historyOf(crawl);

  const workers = table("Workers", [
    { name: "State", kind: "tight", key: (row) => row.state, cell: (row) => stateBadge(row.state) },
    { name: "Host", kind: "name", cell: (row) => row.host },
    { name: "Pid", kind: "n wide", cell: (row) => row.pid ?? "?" },
    { name: "Since", kind: "n wide", cell: (row) => row.since || "?" },
    { name: "Beats", kind: "n wide", cell: (row) => count(row.beat) },
    ...counts({ Leases: "leases", Done: "done" }), pagesPerSecond,
  ], "No worker is registered.");
  const workerBox = card("Workers", "", workers.node, workers.empty);

  const limitColumn = { name: "", kind: "n", key: (row) => `${row.name !== null}`, cell: (row, line) => (row.name === null ? "" : button("Limit", () => limitDialog(crawl, line.row), "small")) };
  const parts = (title, none, ...columns) => {
    const list = table(`${title} partitions`, [{ name: "Partition", kind: "name", cell: (row) => row.partition }, ...columns, ...(may.steering ? [limitColumn] : [])], none);
    return { ...card(`${title} partitions`, "", list.node, list.empty), fill: list.fill };
  };
  const waits = { name: "Waiting", kind: "n", cell: (row) => count(row.waiting) };
  const largest = parts("Largest", "Nothing waits.", waits, { name: "Delay", kind: "n wide", cell: (row) => row.delay || "–" }, { name: "At once", kind: "n wide", cell: (row) => row.concurrency || "–" });
  const slowest = parts("Slowest", "No limit holds anything up.", { name: "Takes", kind: "n", cell: (row) => row.takes }, waits, { name: "Delay", kind: "n wide", cell: (row) => row.delay || "–" });
  const blocked = parts("Blocked", "None is blocked.", { name: "For", kind: "n", cell: (row) => row.blocked }, waits);

  const about = el("p", { class: "quiet", hidden: true }, "There is no such crawl now: it has not begun, or its keys were deleted. If it begins, it is shown here.");
  const content = el("div", { hidden: true }, top, history, workerBox.node, el("div", { class: "grid" }, largest.node, el("div", { class: "stack" }, slowest.node, blocked.node)), memory);
  main.replaceChildren(crumbs(["Crawls", "#/"]), heading(crawl, phase, where, actions), tabs(crawl, ""), about, content);
  if (may.steering) steering(crawl, actions);

  let spoken = "";
  live({ kind: "crawl", crawl }, (look) => {
    about.hidden = look !== null;
    content.hidden = look === null;
    if (look === null) return phase.replaceChildren(badge("absent", "warn"));
    if (spoken !== look.words.phase) {
      phase.replaceChildren(phaseBadge(look));
      if (spoken) byId("spoken").textContent = `The crawl is ${look.words.phase}`;
      spoken = look.words.phase;
    }
    setText(where, `run ${look.run} at ${look.redis}`);
    const ended = look.done + look.failed + look.dead, all = ended + look.waiting + look.delayed + look.in_flight;
    bar.max = Math.max(1, all);
    bar.value = all ? ended : 1;
    setText(speed, rate(look.pages_per_s));
    setText(part, `${all ? Math.floor((100 * ended) / all) : 100} %, ${count(ended)} of ${count(all)} known`);
    const known = look.words.left ? [`${look.words.left} left for all known`] : [];
    setText(left, [...known, ...look.words.awaiting].join("; "));
    for (const [name] of STATS) {
      setText(values[name], count(look[name]));
      if (name === "failed" || name === "dead") values[name].closest("div").className = look[name] ? "bad" : "";
    }
    wrong.replaceChildren(...look.words.missing.map((text) => el("p", {}, badge(text, "bad"))));
    workers.fill(look.worker_rows);
    const states = Object.entries(look.worker_states).map(([state, n]) => `${count(n)} ${state}`).join(", ");
    const cut = look.workers > look.worker_rows.length ? `; ${count(look.worker_rows.length)} shown` : "";
    setText(workerBox.said, states + cut);
    largest.fill(look.largest_partitions);
    slowest.fill(look.slowest_partitions);
    blocked.fill(look.blocked_partitions);
    setText(largest.said, look.words.examined);
    setText(memory, look.words.memory ? `${look.words.memory}, for everything in it.` : "");
  });
}

// Returns the curves of the last hours or days, with a mark for each event.
function historyOf(crawl) {
  let kind = "history";
  const charts = [
    chart("Pages per second", 1, rate), chart("Left", 2, count), chart("Failed and dead", 3, count),
    chart("Redis memory", 4, (bytes) => `${(bytes / 1048576).toLocaleString("en-US", { maximumFractionDigits: 1 })} MiB`),
  ];
  const spans = { history: "3 hours", days: "2 days" };
  const box = card("History", "", el("div", { class: "charts" }, ...charts.map((each) => each.node)));
  const choices = Object.entries(spans).map(([name, text]) => el("button", { type: "button", class: "small", "aria-pressed": "false", on: { click: () => { kind = name; load(); } } }, text));
  box.actions.append(...choices);
  box.node.hidden = true;
  async function load() {
    const seen = await see({ kind, crawl });
    if (!seen || !seen.look) return;
    const { points, events, missing } = seen.look;
    Object.keys(spans).forEach((name, at) => { choices[at].setAttribute("aria-pressed", String(name === kind)); choices[at].className = name === kind ? "small chosen" : "small"; });
    for (const each of charts) each.draw(points, events);
    setText(box.said, missing.join("; "));
    box.node.hidden = points.length < 2;
  }
  repeat(10, load);
  return box.node;
}

function eventsPage(crawl) {
  const list = table("Events", [
    { name: "When", kind: "tight", cell: (row) => when(row.at) },
    { name: "Run", kind: "n", cell: (row) => row.run },
    { name: "What", kind: "long", cell: (row) => row.said },
    { name: "Who", kind: "by wide", cell: (row) => row.who },
  ], "Nothing has happened yet.");
  const box = card("Newest first", "", list.node, list.empty);
  box.node.hidden = true;
  main.replaceChildren(crumbs(["Crawls", "#/"], [crawl, address(crawl)]), heading("Events"), tabs(crawl, "events"), box.node);
  repeat(10, async () => {
    const look = await once({ kind: "history", crawl });
    if (!look) return;
    box.node.hidden = false;
    list.fill(look.events);
    setText(box.said, [...(look.events.length ? [`the newest ${count(look.events.length)}`] : []), ...look.missing].join("; "));
  });
}

function steering(crawl, actions) {
  const order = (action) => ({ action, crawl });
  actions.append(
    button("Pause", () => confirmed("Pause the crawl?", "Workers finish the requests in progress, and wait until you resume.", "Pause", order("pause"))),
    button("Resume", () => send(order("resume"))),
    button("Drain", () => confirmed("Drain the crawl?", "Workers finish all that they hold, lease nothing more, and wait until you resume.", "Drain", order("drain"))),
    button("Stop", () => confirmed("Stop all workers?", "They close as on SIGTERM. The crawl stays: workers that start later continue it.", "Stop", order("stop")), "danger"),
    button("Limit", () => limitDialog(crawl, null)),
    button("Forget", () => forgetDialog(crawl)),
  );
}

const field = (label, attributes) => el("label", {}, label, el(attributes.rows ? "textarea" : "input", { autocomplete: "off", ...attributes }));

function limitDialog(crawl, row) {
  const number = (fields, name) => (fields.get(name) === "" ? null : Number(fields.get(name)));
  dialog("Limit a partition", "For all workers together, until the run is finished. Empty fields change nothing; 0 removes a limit or a block.", [
    field("Partition (usually a host)", { name: "partition", value: row ? row.name : "", spellcheck: "false" }),
    el("div", { class: "two" },
      field("Seconds between two requests", { name: "delay_s", type: "number", min: 0, max: 86400, step: "any", placeholder: row ? row.delay_s : "" }),
      field("Requests at once", { name: "concurrency", type: "number", min: 0, max: 1000000, step: 1, placeholder: row ? row.concurrency : "" })),
    field("Block it for seconds", { name: "block_s", type: "number", min: 0, max: 31536000, step: "any" }),
  ], "Set", (fields) => send({
    action: "limit", crawl, partition: fields.get("partition"),
    delay_s: number(fields, "delay_s"), concurrency: number(fields, "concurrency"), block_s: number(fields, "block_s"),
  }));
}

function forgetDialog(crawl) {
  dialog("Forget requests", "The crawl forgets that it has seen these URLs: the next time one is found, it is crawled again. This alone crawls nothing.", [
    field("URLs, one a line", { name: "urls", rows: 6, spellcheck: "false", required: true }),
  ], "Forget", (fields) => send({ action: "forget", crawl, urls: fields.get("urls").split("\n").map((url) => url.trim()).filter(Boolean) }));
}

// ---- failed requests and dead letters

const WORDS = { failed: ["Failed requests", "failed request"], dead: ["Dead letters", "dead letter"] };

async function failuresPage(crawl, kind) {
  const [many, one] = WORDS[kind];
  let chosen = null, words = "", look = null;
  const ours = (group) => ({ action: "retry", crawl, kind, cause: group.cause, host: group.host });
  const again = async (order) => {
    const done = await send(order);
    if (done) setTimeout(load, 300);
    return done;
  };
  const retryGroup = (group) => dialog("Retry this group?", ["All that are kept with this cause and host go back into the backlog: ", bdi(group.cause)], [], "Retry", () => again(ours(group)));
  const causes = table(`${many} by cause and host`, [
    { name: "Count", kind: "n", cell: (row) => count(row.count) },
    { name: "Cause, host", kind: "long", key: (row) => `${row.cause} ${row.host}`, cell: (row) => el("div", {}, bdi(row.cause || "(no reason)"), el("span", { class: "under" }, bdi(row.host || "no host"))) },
    { name: "Newest", kind: "tight wide", cell: (row) => when(row.newest) },
    { name: "", kind: "n", key: (row) => `${same(row)}`, cell: (row, line) => el("div", { class: "actions" },
      el("button", { type: "button", class: same(row) ? "small chosen" : "small", "aria-pressed": same(row), on: { click: () => { chosen = same(line.row) ? null : line.row; draw(); } } }, "Show"),
      may.steering ? button("Retry", () => retryGroup(line.row), "small") : null) },
  ], `No ${one} is kept.`);
  function same(row) { return chosen !== null && chosen.cause === row.cause && chosen.host === row.host; }
  const list = table(many, [
    { name: "Request", kind: "long", key: (row) => row.id, cell: (row) => el("div", {}, el("a", { href: address(crawl, kind, row.id) }, bdi(row.url || "(no URL)")), el("span", { class: "under" }, bdi(row.reason))) },
    { name: "When", kind: "tight", cell: (row) => when(row.at) },
    { name: "Worker", kind: "by wide", cell: (row) => row.by },
    ...(may.steering ? [{ name: "", kind: "n", key: () => "retry", cell: (row, line) => button("Retry", () => again({ action: "retry", crawl, kind, id: line.row.id }), "small") }] : []),
  ], "None of these.");
  const causeBox = card("By cause", "", causes.node, causes.empty);
  const find = el("input", { type: "search", placeholder: "Filter by URL or reason", "aria-label": "Filter by URL or reason", on: { input: () => { words = find.value.toLowerCase(); draw(); } } });
  const listBox = card("Newest first", "", el("div", { class: "filter" }, find), list.node, list.empty);
  if (may.steering) causeBox.actions.append(button("Retry all", () => dialog(`Retry all ${many.toLowerCase()}?`, "All that are kept go back into the backlog.", [], "Retry all", () => again({ action: "retry", crawl, kind, all: true }))));
  causeBox.actions.prepend(button("Read again", () => load()));
  const content = el("div", { hidden: true }, causeBox.node, listBox.node);
  main.replaceChildren(crumbs(["Crawls", "#/"], [crawl, address(crawl)]), heading(many), tabs(crawl, kind), content);

  function draw() {
    causes.fill(look.groups);
    list.fill(look.rows.filter((row) => (!chosen || same(row)) && (!words || `${row.url} ${row.reason}`.toLowerCase().includes(words))));
    listBox.node.hidden = look.rows.length === 0;
    const kept = look.kept === look.total ? "" : `, ${count(look.kept)} kept`;
    const part = look.rows.length < look.kept ? `; grouped are ${kind === "failed" ? "the newest " : ""}${count(look.rows.length)}` : "";
    setText(causeBox.said, [`${count(look.total)} in this run${kept}${part}`, ...look.missing].join("; "));
    setText(listBox.said, chosen ? "one group" : "");
  }
  async function load() {
    const seen = await once({ kind, crawl });
    if (!seen) return;
    look = seen;
    if (chosen && !look.groups.some(same)) chosen = null;
    content.hidden = false;
    draw();
  }
  await load();
}

async function entryPage(crawl, kind, id) {
  const content = el("div");
  main.replaceChildren(crumbs(["Crawls", "#/"], [crawl, address(crawl)], [WORDS[kind][0], address(crawl, kind)]), heading(`One ${WORDS[kind][1]}`), tabs(crawl, kind), content);
  const found = await once({ kind: `${kind}_one`, crawl, id });
  if (!found) return;
  const facts = (rows, kindOf) => el("dl", { class: `facts ${kindOf}` }, ...rows.flatMap(([name, value]) => [el("dt", {}, bdi(name)), el("dd", {}, bdi(value))]));
  const what = card("What happened", "", facts([["URL", found.url], ["Reason", found.reason], ["When", when(found.at)], ["Worker", found.worker || "none"], ["Crashes", count(found.attempts)], ["Id", found.id]], ""));
  const request = card("The request", found.left_out ? `${count(found.left_out)} more attributes` : "as it is stored, without logins", facts(found.request, "asked"));
  if (may.steering) what.actions.append(button("Retry", async () => { if (await send({ action: "retry", crawl, kind, id })) location.hash = address(crawl, kind); }, "first"));
  content.replaceChildren(what.node, request.node);
}

// ---- settings

function settingsPage() {
  const list = table("Settings", [
    { name: "Setting", kind: "tight mono", cell: (row) => row.name },
    { name: "Value", kind: "name", key: (row) => row.value, cell: (row) => el("span", {}, row.default ? bdi(row.value || "–") : el("strong", {}, bdi(row.value || "–")), row.value && row.unit ? ` ${row.unit}` : "") },
    { name: "About", kind: "long wide", cell: (row) => row.about.replaceAll("`", "") },
  ], "");
  const shown = may.settings.filter((row) => !["DQ_CRAWL", "DQ_RUN_NAME"].includes(row.name));
  const box = card("Of this page's project", "bold: not the default", list.node);
  main.replaceChildren(heading("Settings", badge(may.steering ? "this page may steer" : "this page only reads", may.steering ? "warn" : "")), box.node);
  list.fill([...shown.filter((row) => !row.default), ...shown.filter((row) => row.default)]);
  age(0, "");
}

// ---- token and routes

function gate() {
  opened += 1;
  const input = el("input", { type: "password", name: "token", autocomplete: "off", required: true });
  const form = el("form", { class: "form", on: { submit: (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEPT, input.value.trim());
    start();
  } } }, el("h1", { tabindex: "-1" }, "Token"), el("p", { class: "quiet" }, token() ? "The token is wrong." : "This page needs the token that `scrapy dq web` was started with."),
    el("label", {}, "Token", input), el("div", {}, el("button", { class: "first", type: "submit" }, "Open")));
  main.replaceChildren(el("div", { class: "card gate" }, form));
  input.focus();
}

function route() {
  opened += 1;
  isLive = false;
  ageThen = null;
  age(null, "");
  const [page, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  for (const link of document.querySelectorAll("[data-page]")) {
    const current = link.dataset.page === (page === "settings" ? "settings" : "crawls");
    if (current) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  const [crawl, part, id] = rest;
  let title = "Crawls";
  if (page === "settings") { title = "Settings"; settingsPage(); }
  else if (page === "crawl" && crawl) {
    title = part ? `${WORDS[part]?.[0] ?? "Events"} of ${crawl}` : crawl;
    if (WORDS[part]) id ? entryPage(crawl, part, id) : failuresPage(crawl, part);
    else if (part === "events") eventsPage(crawl);
    else crawlPage(crawl);
  } else crawlsPage();
  document.title = `${printable(title).slice(0, 100)} – scrapy_dq`;
  scrollTo(0, 0);
  if (route.again) main.querySelector("h1")?.focus({ preventScroll: true });
  route.again = true;
}

async function start() {
  try {
    may = await (await ask("settings")).json();
  } catch (error) {
    if (error.status === 401) return gate();
    age(null, error.message);
    return setTimeout(start, 2000);
  }
  route();
}

// `scrapy dq web` prints an address with #token=... This tab keeps the token, and removes it from the address.
const given = /^#token=([^&]*)(?:&(.*))?$/.exec(location.hash);
if (given) {
  sessionStorage.setItem(KEPT, given[1]);
  history.replaceState(null, "", `#${given[2] || "/"}`);
}
addEventListener("hashchange", route);
byId("dialog").addEventListener("click", (event) => { if (event.target === event.currentTarget) event.currentTarget.close(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
start();
