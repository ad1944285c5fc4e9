// All states: a grid of which only the rows in sight exist, fetched page by page.
import { ask, ServerError } from "./server.js";
import { failed, h, say, settled } from "./dom.js";
import { bits, percent, plural } from "./numbers.js";
import { cardAddress, rename } from "./route.js";

const SIZE = 50;
const BEYOND = 8;
const COLUMNS = [
  ["id", "State", "asc"],
  ["block", "Block", "asc"],
  ["words", "Most probable words", null],
  ["use", "Use", "desc"],
  ["entropy", "Entropy", "asc"],
];

export function make(root, app) {
  const columns = COLUMNS.filter(([key]) => key !== "block" || app.model.blocks);
  let asked = { q: "", block: "", sort: "", order: "" };
  let pages = new Map();
  let rows = new Map();
  let total = app.model.states;
  let active = 0;
  let turn = 0;
  let rowHeight = 0;
  let note = null;
  let held = null;
  /** Where in the list one is, exactly, at a place of the scroll bar that stands for several rows. */

  const search = h("input", { type: "search", id: "find", placeholder: "a word or a number", autocomplete: "off", spellcheck: "false" });
  const block = h("input", { type: "number", id: "in-block", min: "0", max: String((app.model.blocks ?? 1) - 1), inputmode: "numeric" });
  const found = h("p", { class: "muted found" });
  const heads = columns.map(([key, name, first]) =>
    h("th", { role: "columnheader", scope: "col", class: `of-${key}`, "data-key": key },
      first === null ? name : h("button", { type: "button", onclick: () => sortBy(key, first) }, name, h("span", { class: "arrow", "aria-hidden": "true" }))));
  const body = h("tbody", { role: "rowgroup", vars: { "--rows": total } });
  const table = h("table", { role: "grid", class: app.model.blocks ? "states" : "states no-blocks", "aria-colcount": String(columns.length) },
    h("caption", { class: "unseen" }, "States of the model. Arrow keys move from row to row, Enter opens the card."),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row", "aria-rowindex": "1" }, heads)), body);
  const scroller = h("div", { class: "scroller" }, table);
  const trouble = h("div", {});
  const noted = h("p", { class: "muted small noted", hidden: true });
  root.append(
    h("form", { class: "tools", role: "search", onsubmit: (event) => event.preventDefault() },
      h("span", { class: "pair" }, h("label", { for: "find" }, "Find"), search),
      app.model.blocks ? h("span", { class: "pair" }, h("label", { for: "in-block" }, "Block"), block) : null, found),
    trouble, noted, scroller);

  const query = (page) => {
    const terms = new URLSearchParams({ page, size: SIZE });
    for (const [key, value] of Object.entries(asked)) if (value !== "") terms.set(key, value);
    if (!asked.sort && !asked.q) { terms.set("sort", "use"); terms.set("order", "desc"); }
    return `/api/states?${terms}`;
  };

  /** Asks anew, from the first row. */
  function restart() {
    turn += 1;
    pages = new Map();
    for (const row of rows.values()) row.remove();
    rows = new Map();
    active = 0;
    held = null;
    scroller.scrollTop = 0;
    const now = asked.sort || (asked.q ? "" : "use");
    const order = asked.sort ? asked.order : "desc";
    for (const head of heads) {
      const here = head.dataset.key === now;
      head.setAttribute("aria-sort", here ? `${order}ending` : "none");
    }
    fetchPage(0);
  }

  async function fetchPage(page) {
    if (pages.has(page)) return;
    const mine = turn;
    pages.set(page, null);
    try {
      const answer = await ask(query(page));
      if (mine !== turn) return;
      pages.set(page, answer.states);
      trouble.replaceChildren();
      if (page === 0 || answer.total !== total) {
        total = answer.total;
        note = answer.note;
        tell();
      }
      const held = document.activeElement === rows.get(active);
      for (let index = page * SIZE; index < (page + 1) * SIZE; index++) {
        rows.get(index)?.remove();
        rows.delete(index);
      }
      draw();
      if (held) rows.get(active)?.focus({ preventScroll: true });
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      if (mine !== turn) return;
      pages.delete(page);
      trouble.replaceChildren(failed(error));
    }
  }

  function tell() {
    table.setAttribute("aria-rowcount", String(total + 1));
    body.style.setProperty("--rows", total);
    held = null;
    const what = [plural(total, "state")];
    if (asked.q) what.push(/^\d+$/.test(asked.q) ? `for ${asked.q}` : `that may emit “${asked.q}”`);
    if (asked.block !== "") what.push(`in block ${asked.block}`);
    found.textContent = what.join(" ");
    say([found.textContent, note].filter(Boolean).join(". "));
    noted.textContent = note ?? "";
    noted.hidden = !note || total === 0;
    if (total === 0) {
      body.replaceChildren(h("tr", { role: "row", class: "none", "aria-rowindex": "2" },
        h("td", { role: "gridcell", colspan: String(columns.length) },
          note ?? `No state ${what.slice(1).join(" ")}. Try a word of the model’s own spelling, or the number of a state.`)));
    } else body.querySelector(".none")?.remove();
  }

  const view = () => scroller.clientHeight - table.tHead.offsetHeight;
  /** Pixels of the list for one of the scroll bar: more than one where browsers cannot have so tall a page. */
  function scale() {
    const [whole, tall] = [total * rowHeight, body.offsetHeight];
    return whole > tall + 1 && tall > view() ? (whole - view()) / (tall - view()) : 1;
  }
  /** Where in the list one is. The scroll bar's end is the list's, wherever browsers round it to. */
  function offset() {
    const at = scroller.scrollTop;
    if (held && Math.abs(at - held.at) < 1) return held.offset;
    const ends = scale() > 1 && at > scroller.scrollHeight - scroller.clientHeight - 1;
    return ends ? total * rowHeight - view() : at * scale();
  }
  function scrollTo(wanted) {
    scroller.scrollTop = wanted / scale();
    held = { at: scroller.scrollTop, offset: wanted };
  }

  /** Makes the rows in sight, and a few beyond; asks for what is not known yet. */
  function draw() {
    rowHeight = parseFloat(getComputedStyle(body).getPropertyValue("--row-height")) || 60;
    const from = offset();
    const first = Math.max(0, Math.floor(from / rowHeight) - BEYOND);
    const last = Math.min(total - 1, Math.ceil((from + scroller.clientHeight) / rowHeight) + BEYOND);
    const scaled = scale() > 1;
    body.style.setProperty("--first", scaled ? first : 0);
    body.style.setProperty("--start", scaled ? `${Math.round(scroller.scrollTop - from + first * rowHeight)}px` : "0px");
    for (const [index, row] of rows) {
      // The row that has the focus stays, however far away it is.
      if ((index < first || index > last) && index !== active) { row.remove(); rows.delete(index); }
    }
    for (let index = first; index <= last; index++) place(index);
    if (active < total) place(active);
    wanted(first, last);
  }

  const wanted = settled((first, last) => {
    for (let page = Math.floor(first / SIZE); page <= Math.floor(last / SIZE); page++) fetchPage(page);
  }, 30);

  function place(index) {
    if (rows.has(index)) return;
    const state = pages.get(Math.floor(index / SIZE))?.[index % SIZE];
    const row = state ? full(state) : h("tr", { role: "row", "aria-busy": "true" }, h("td", { role: "gridcell", class: "pending" }, "…"));
    row.setAttribute("aria-rowindex", String(index + 2));
    row.style.setProperty("--index", index);
    row.dataset.index = index;
    row.tabIndex = index === active ? 0 : -1;
    rows.set(index, row);
    // In reading order, for those who read the table and do not see it.
    const after = [...body.children].find((other) => Number(other.dataset.index) > index);
    body.insertBefore(row, after ?? null);
  }

  function full(state) {
    const most = state.words[0]?.[1] ?? 1;
    const cells = {
      id: h("a", { href: cardAddress(state.id), tabindex: "-1" }, String(state.id)),
      block: state.block === null ? "–" : String(state.block),
      words: state.words.map(([word, p]) =>
        h("span", { class: word === asked.q ? "word hit" : "word", vars: { "--share": p / Math.max(most, 1e-9), "--p": p } },
          h("span", { class: "name" }, word), " ", h("span", { class: "number" }, percent(p)), " ")),
      use: h("span", { class: "number" }, percent(state.use)),
      entropy: h("span", { class: "number" }, bits(state.entropy), h("span", { class: "unit" }, " bits")),
    };
    return h("tr", { role: "row", "data-state": String(state.id) }, columns.map(([key], place) =>
      h(place ? "td" : "th", { role: place ? "gridcell" : "rowheader", scope: place ? null : "row", class: `of-${key}`, "data-name": COLUMNS.find(([k]) => k === key)[1] }, cells[key])));
  }

  function sortBy(key, first) {
    const same = (asked.sort || (asked.q ? "" : "use")) === key;
    const before = asked.sort ? asked.order : "desc";
    asked = { ...asked, sort: key, order: same ? (before === "asc" ? "desc" : "asc") : first };
    remember();
    restart();
  }

  const remember = () => rename({ panel: "states", q: asked.q, block: asked.block, sort: asked.sort, order: asked.order });

  function move(index) {
    index = Math.min(Math.max(index, 0), total - 1);
    const old = rows.get(active);
    if (old) old.tabIndex = -1;
    active = index;
    const head = table.tHead.offsetHeight;
    const top = index * rowHeight;
    if (top < offset()) scrollTo(top);
    if (top + rowHeight > offset() + scroller.clientHeight - head) scrollTo(top + rowHeight - scroller.clientHeight + head);
    place(index);
    rows.get(index).tabIndex = 0;
    rows.get(index).focus({ preventScroll: true });
    draw();
  }

  body.addEventListener("keydown", (event) => {
    const step = Math.max(1, Math.floor(scroller.clientHeight / rowHeight) - 1);
    const goals = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + step, PageUp: active - step, Home: 0, End: total - 1 };
    if (event.key in goals) { event.preventDefault(); move(goals[event.key]); }
    else if (event.key === "Enter") open(rows.get(active));
  });
  const open = (row) => { if (row?.dataset.state) location.href = cardAddress(Number(row.dataset.state)); };
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (!row?.dataset.state) return;
    event.preventDefault();
    move(Number(row.dataset.index));
    open(row);
  });
  let drawing = 0;
  scroller.addEventListener("scroll", () => { cancelAnimationFrame(drawing); drawing = requestAnimationFrame(draw); }, { passive: true });
  new ResizeObserver(() => {
    if (root.hidden) return;
    held = null;
    scroller.style.setProperty("--head", `${table.tHead.offsetHeight}px`);
    draw();
  }).observe(scroller);
  const changed = settled(() => {
    asked = { ...asked, q: search.value.trim(), block: block.value.trim(), sort: "", order: "" };
    remember();
    restart();
  }, 150);
  search.addEventListener("input", changed);
  block.addEventListener("input", changed);
  search.addEventListener("keydown", (event) => { if (event.key === "ArrowDown" && total) { event.preventDefault(); move(active); } });

  // The same rows once more, now with their use; where one is stays where one is.
  app.useChanged.add(() => {
    turn += 1;
    pages = new Map();
    draw();
  });
  let begun = false;
  return {
    show(place) {
      const given = { q: place.q ?? "", block: place.block ?? "", sort: place.sort ?? "", order: place.order ?? "" };
      if (given.sort && !given.order) given.order = COLUMNS.find(([key]) => key === given.sort)?.[2] ?? "asc";
      const same = Object.entries(given).every(([key, value]) => asked[key] === value);
      if (begun && same) return draw();
      begun = true;
      asked = given;
      search.value = asked.q;
      block.value = asked.block;
      restart();
    },
  };
}
