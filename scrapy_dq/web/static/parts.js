// Elements from data. Whatever a crawl has found becomes text, never markup.

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

// As the server does with all that it sends; an address may have any text.
export const printable = (text) => String(text).replace(/(?!\n)[\p{C}\p{Zl}\p{Zp}]/gu, "?");

// Text of a crawl, whose direction changes nothing around it.
export const bdi = (text) => el("bdi", { dir: "auto" }, printable(text));

export const count = (value) => (value == null ? "–" : Number(value).toLocaleString("en-US"));
export const rate = (value) =>
  value == null ? "–" : Number(value).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
export const when = (seconds) => new Date(seconds * 1000).toLocaleString("sv-SE");

export function span(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return whole < 86400 ? `${Math.floor(whole / 3600)} h ${Math.floor((whole / 60) % 60)} min` : `${Math.floor(whole / 86400)} d ${Math.floor((whole / 3600) % 24)} h`;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A table whose rows are changed in place: what has the focus keeps it.
// columns: {name, kind: "n" | "name" | "long" | "tight", cell: row -> text or Node, key: row -> what a Node depends on}
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

// Shows the first rows, and more when asked.
export function pages(shown, size) {
  let most = size, all = [];
  const said = el("span");
  const button = el("button", { type: "button", on: { click: () => { most += size; draw(); } } }, `Show ${size} more`);
  const node = el("p", { class: "more" }, said, " ", button);
  function draw() {
    shown.fill(all.slice(0, most));
    node.hidden = all.length <= most;
    setText(said, `${count(Math.min(most, all.length))} of ${count(all.length)}.`);
  }
  return { node, fill(rows) { all = rows; draw(); }, reset() { most = size; } };
}

export function badge(text, kind) {
  return el("span", { class: `badge ${kind || ""}` }, text);
}

const PHASES = { open: "good", finished: "" };
export const phaseBadge = (look) => badge(look.words.phase, look.hold ? "warn" : PHASES[look.phase] ?? "warn");
const STATES = { alive: "good", running: "good", unknown: "", fenced: "warn", stalled: "warn", silent: "warn", dead: "bad" };
export const stateBadge = (state) => badge(state, STATES[state]);

// A line of numbers over time, as wide as there is room for.
export function sparkline(label) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  const under = document.createElementNS(ns, "path");
  const line = document.createElementNS(ns, "path");
  under.setAttribute("class", "under");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.append(under, line);
  return {
    node: svg,
    draw(points) {
      const first = points[0][0], last = points[points.length - 1][0] || 1;
      const top = Math.max(...points.map((point) => point[1]), 1e-9);
      const at = points.map(([x, y]) => `${((100 * (x - first)) / (last - first || 1)).toFixed(2)},${(96 - (92 * y) / top).toFixed(2)}`);
      line.setAttribute("d", `M${at.join("L")}`);
      under.setAttribute("d", `M0,100L${at.join("L")}L100,100Z`);
    },
  };
}
