// The whole card of a state, in a dialog over whatever view is open.
import { ask, newest } from "./server.js";
import { failed, h, hue, loading, wordTable } from "./dom.js";
import { bits, percent, plural } from "./numbers.js";
import { cardAddress, write } from "./route.js";

const FIRST = 10;

export function makeCard(dialog, app) {
  let shown = null;
  const title = h("h2", { id: "card-title", tabindex: "-1" });
  const body = h("div", { class: "card-body" });
  dialog.append(
    h("div", { class: "card-head" }, title,
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close")),
    body);
  // A click beside the card, on the backdrop, closes it.
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { shown = null; });
  const fetchCard = newest(
    (id) => ask(`/api/states/${id}`),
    (state) => { body.replaceChildren(...describe(state, app.model)); body.scrollTop = 0; },
    (error) => body.replaceChildren(failed(error)));
  app.useChanged.add(() => { if (shown !== null) fetchCard(shown); });

  return {
    open(id) {
      if (id === shown) return;
      shown = id;
      title.textContent = `State ${id}`;
      body.replaceChildren(loading("Reading the card"));
      if (!dialog.open) dialog.showModal();
      title.focus();
      fetchCard(id);
    },
    close() { if (dialog.open) dialog.close(); },
  };
}

function describe(state, model) {
  return [
    h("dl", { class: "facts" },
      state.block === null ? null : fact("Block",
        h("a", { href: write({ panel: "blocks", about: String(state.block) }) }, String(state.block))),
      state.tag ? fact("Tag", state.tag) : null,
      fact("Share of use", state.use !== null ? percent(state.use) : state.use_state.state === "failed" ? "not counted" : "being counted"),
      fact("Entropy", `${bits(state.entropy)} bits`),
      fact("Begins a line", percent(state.starts)),
      fact("Ends a line", percent(state.ends))),
    h("div", {}, wordTable("Most probable words", state.words.slice(0, FIRST), percent),
      state.words.length > FIRST ? h("details", { class: "as-table" }, h("summary", {}, plural(state.words.length - FIRST, "more word")),
        wordTable("Less probable words", state.words.slice(FIRST), percent)) : null),
    h("div", { class: "ways" }, ways("Comes from", state.from, state.use_state), ways("Goes to", state.to)),
    examples(state.examples, state.use_state, model.use_from),
  ];
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

const counting = (use) => `This is being counted${use ? `, ${Math.round(100 * use.progress)}%` : ""} …`;

function ways(caption, states, use) {
  if (states === null) return h("div", {}, h("h3", {}, caption), h("p", { class: "muted" }, use?.problem ?? counting(use)));
  if (!states?.length) return h("p", { class: "muted" }, `${caption}: nothing to show.`);
  const most = Math.max(...states.map((state) => state.p), Number.MIN_VALUE);
  return h("table", { class: "words" },
    h("caption", {}, caption),
    h("thead", { class: "unseen" }, h("tr", {}, ...["State", "Its words", "Probability"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, states.map((state) =>
      h("tr", { vars: { "--share": state.p / most } },
        h("th", { scope: "row" }, state.id === null ? "–" : h("a", { class: "state", href: cardAddress(state.id), vars: { "--hue": hue(state.id) } }, String(state.id))),
        h("td", { class: "names" }, state.id === null ? h("em", {}, "beginning of a line") : state.words.map(([word]) => word).join(", ")),
        h("td", {}, h("span", { class: "bar", "aria-hidden": "true" }), h("span", { class: "number" }, percent(state.p)))))));
}

function examples(list, use, from) {
  const heading = h("h3", {}, "In sentences");
  if (!list) return h("div", {}, heading, h("p", { class: "muted" }, use?.problem ?? counting(use)));
  if (!list.length) return h("div", {}, heading, h("p", { class: "muted" }, "There is no text here in which it is used."));
  return h("div", {}, heading, h("ul", { class: "examples" }, list.map((example) =>
    h("li", {},
      h("span", { class: "posterior number" }, h("span", { class: "unseen" }, "posterior "), percent(example.posterior)),
      h("p", {}, example.tokens.map((token, place) =>
        [place ? " " : "", place === example.position ? h("mark", {}, token) : token]))))),
    h("p", { class: "muted small" }, `${plural(list.length, "place")} where this state is most probable, with its posterior. From: ${from}.`));
}
