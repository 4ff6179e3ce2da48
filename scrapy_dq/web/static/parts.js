// Makes elements from data. Data of a crawl always becomes text, never markup.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name === "class") made.className = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, String(value));
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

// Replaces unprintable characters. The server's texts have none, but a text from the page's address may have some.
export const printable = (text) => String(text).replace(/(?!\n)[\p{C}\p{Zl}\p{Zp}]/gu, "?");

// Isolates a text of a crawl: its writing direction does not change the text around it.
export const bdi = (text) => el("bdi", { dir: "auto" }, printable(text));

export const count = (value) => (value == null ? "–" : Number(value).toLocaleString("en-US"));
export const rate = (value) =>
  value == null ? "–" : Number(value).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
export const when = (seconds) => new Date(seconds * 1000).toLocaleString("sv-SE");

export const span = (seconds) => (seconds < 100 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A table that changes its rows in place, so that the focus stays.
// columns: {name, kind: "n" | "name" | "long" | "tight", cell: row -> text or Node, key: row -> value; with a key, the cell changes only if the key changes}
export function table(caption, columns, none) {
  const body = el("tbody");
  const empty = el("p", { class: "quiet" }, none);
  const head = el("tr", {}, ...columns.map((column) => el("th", { scope: "col", class: column.kind || "" }, column.name)));
  const whole = el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, head), body);
  const node = el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, whole);
  function fill(rows) {
    node.hidden = rows.length === 0;
    empty.hidden = rows.length > 0;
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((row, at) => {
      const line = body.rows[at] || body.appendChild(el("tr", {}, ...columns.map((column) => el("td", { class: column.kind || "" }))));
      line.row = row;
      columns.forEach((column, place) => {
        const cell = line.cells[place];
        const key = column.key ? column.key(row) : null;
        if (key !== null && cell.key === key) return;
        const made = column.cell(row, line);
        if (made instanceof Node) cell.replaceChildren(made);
        else if (/^(name|long|by)/.test(column.kind)) {
          if (!cell.firstChild) cell.append(el("bdi", { dir: "auto" }));
          setText(cell.firstChild, String(made));
        } else setText(cell, String(made));
        cell.key = key;
      });
    });
  }
  return { node, empty, fill };
}

export function card(title, note, ...children) {
  const said = el("span", { class: "quiet" }, note || "");
  const actions = el("div", { class: "actions" });
  const node = el("section", { class: "card" }, el("header", {}, el("h2", {}, title), said, actions), ...children);
  return { node, said, actions };
}

export function badge(text, kind) {
  return el("span", { class: `badge ${kind || ""}` }, text);
}

const PHASES = { open: "good", finished: "" };
export const phaseBadge = (look) => badge(look.words.phase, look.hold ? "warn" : PHASES[look.phase] ?? "warn");
const STATES = { alive: "good", running: "good", unknown: "", fenced: "warn", stalled: "warn", silent: "warn", dead: "bad" };
export const stateBadge = (state) => badge(state, STATES[state]);

const svg = (tag, attributes = {}) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
};

// A curve over time with a mark for each event. `place`: the index of its number in a point. `said`: turns a number into text.
export function chart(title, place, said) {
  const now = el("span", { class: "now" }), top = el("span"), first = el("span"), last = el("span");
  const marks = svg("g"), under = svg("path", { class: "under" }), line = svg("path");
  const picture = svg("svg", { class: "spark", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
  picture.append(marks, under, line);
  const node = el("figure", { class: "chart" }, el("figcaption", {}, el("span", {}, title), now), picture,
    el("div", { class: "axis" }, first, top, last));
  function draw(points, events) {
    const known = points.filter((point) => point[place] !== null);
    node.hidden = known.length < 2;
    if (node.hidden) return;
    const from = points[0][0], to = points[points.length - 1][0];
    const most = Math.max(...known.map((point) => point[place]), 1e-9);
    const x = (at) => ((100 * (at - from)) / (to - from || 1)).toFixed(2);
    const y = (value) => (97 - (92 * value) / most).toFixed(2);
    const runs = [[]]; // a missing value ends a run
    for (const point of points) point[place] === null ? runs.push([]) : runs[runs.length - 1].push(point);
    const curves = runs.filter((run) => run.length).map((run) => ({
      curve: run.map((point) => `${x(point[0])},${y(point[place])}`).join("L"), first: x(run[0][0]), last: x(run[run.length - 1][0]),
    }));
    line.setAttribute("d", curves.map(({ curve }) => `M${curve}`).join(""));
    under.setAttribute("d", curves.map(({ curve, first, last }) => `M${first},97L${curve}L${last},97Z`).join(""));
    marks.replaceChildren(...events.filter((event) => event.at >= from && event.at <= to).slice(0, 60).map((event) => {
      const mark = svg("line", { x1: x(event.at), x2: x(event.at), y1: 3, y2: 97, class: /died|outage|waits|damaged/.test(event.kind) ? "bad" : "" });
      const title = svg("title");
      title.textContent = `${when(event.at)}: ${event.said}`;
      mark.append(title);
      return mark;
    }));
    const newest = said(known[known.length - 1][place]);
    setText(now, newest);
    setText(top, `most: ${said(most < 1e-6 ? 0 : most)}`);
    setText(first, when(from).slice(5, 16));
    setText(last, when(to).slice(5, 16));
    picture.setAttribute("aria-label", `${title} from ${when(from)} to ${when(to)}: now ${newest}, at most ${said(most < 1e-6 ? 0 : most)}`);
  }
  return { node, draw };
}
