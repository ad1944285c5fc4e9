// The clusters of words that share states.
import { ask } from "./server.js";
import { empty, failed, h, hue, loading, say } from "./dom.js";
import { count, percent, plural } from "./numbers.js";
import { write } from "./route.js";

const ORDERS = {
  share: ["share of the text", (a, b) => b.share - a.share || b.words - a.words],
  words: ["number of words", (a, b) => b.words - a.words],
  states: ["number of states", (a, b) => b.states - a.states],
  id: ["number of the block", (a, b) => a.id - b.id],
};

export function make(root, app) {
  let blocks = null;
  let wanted = "";
  let arriving = false;
  /** Whether the address has just named a block, which then has the focus, once. */
  if (!app.model.blocks) {
    root.append(empty("This model has no blocks: every state may emit words of any kind. The map shows which states are alike."));
    return { show() {} };
  }
  const order = h("select", { id: "block-order", onchange: draw }, Object.entries(ORDERS).map(([key, [name]]) => h("option", { value: key }, name)));
  const find = h("input", { type: "search", id: "block-find", placeholder: "one of their top words", autocomplete: "off", spellcheck: "false", oninput: draw });
  const found = h("p", { class: "muted found" });
  const list = h("div", { class: "blocks" });
  root.append(
    h("div", { class: "tools" }, h("span", { class: "pair" }, h("label", { for: "block-find" }, "Find"), find), h("span", { class: "pair" }, h("label", { for: "block-order" }, "Order by"), order), found), list);

  function draw() {
    if (blocks === null) return;
    const text = find.value.trim();
    const [, by] = ORDERS[order.value];
    const kept = blocks.filter((block) => !text || String(block.id) === text || block.top.some(([word]) => word.includes(text))).sort(by);
    found.textContent = text ? `${count(kept.length)} of ${plural(blocks.length, "block")}` : plural(blocks.length, "block");
    say(found.textContent);
    list.replaceChildren(...(kept.length ? kept.map(box) : [empty(`No block has “${text}” among its first words.`)]));
    if (wanted && arriving) document.getElementById(`block-${wanted}`)?.querySelector("summary").focus();
    arriving = false;
  }

  function box(block) {
    const most = Math.max(...block.top.map(([, p]) => p), Number.MIN_VALUE);
    const all = h("div", { class: "all-words" });
    const share = block.share === null ? null : percent(block.share);
    const details = h("details", { id: `block-${block.id}`, class: "block", vars: { "--hue": hue(block.id) } },
      h("summary", {},
        h("span", { class: "block-head" }, h("span", { class: "swatch", "aria-hidden": "true" }), h("strong", {}, `Block ${block.id}`),
          h("span", { class: "muted small" }, `${plural(block.words, "word")} · ${plural(block.states, "state")}${share ? ` · ${share}` : ""}`)),
        h("span", { class: "tops" }, block.top.map(([word, p]) => h("span", { class: "top", vars: { "--share": p / most } }, h("span", { class: "name" }, word), " ", h("span", { class: "number" }, percent(p)))))),
      all,
      h("p", {}, h("a", { href: write({ panel: "states", block: block.id }) }, `The ${plural(block.states, "state")} of block ${block.id}`)));
    details.addEventListener("toggle", () => { if (details.open && !all.hasChildNodes()) open(block, all); });
    if (String(block.id) === wanted) details.open = true;
    return details;
  }

  async function open(block, all) {
    all.replaceChildren(loading("Reading its words"));
    try {
      const got = await ask(`/api/blocks/${block.id}`);
      const shown = got.words.map(([word]) => word);
      const left = got.total - shown.length;
      all.replaceChildren(h("p", {}, shown.join(" "), left > 0 ? h("span", { class: "muted" }, ` and ${count(left)} more`) : null));
    } catch (error) {
      all.replaceChildren(failed(error));
    }
  }

  app.useChanged.add(() => {
    if (blocks === null) return;
    blocks = null;
    load();
  });

  async function load() {
    if (!list.hasChildNodes()) list.replaceChildren(loading("Reading the blocks"));
    try {
      blocks = (await ask("/api/blocks")).blocks;
      draw();
    } catch (error) {
      list.replaceChildren(failed(error));
    }
  }

  return {
    show(place) {
      wanted = place.about;
      arriving = true;
      if (blocks !== null) { if (wanted) draw(); return; }
      load();
    },
  };
}
