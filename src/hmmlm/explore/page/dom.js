// Elements, and pieces that several views share.

/** An element. `on…` are listeners, `vars` are CSS variables; false and null are left out. */
export function h(tag, given = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "vars") {
      for (const [name, set] of Object.entries(value)) node.style.setProperty(name, set);
    } else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

/** A colour's place on the wheel for a number; neighbours are far apart. */
export const hue = (number) => ((number * 137.508) % 360).toFixed(1);

/** What stands in a view while it has nothing else to show. */
export const loading = (what) => h("p", { class: "notice", "aria-busy": "true" }, `${what} …`);
export const empty = (sentence) => h("p", { class: "notice" }, sentence);
export const failed = (error) =>
  h("p", { class: "notice bad", role: "alert" }, h("strong", {}, "That did not work. "), error.message);

let saying;
/** Tells a screen reader, once things have settled. */
export function say(sentence) {
  clearTimeout(saying);
  saying = setTimeout(() => { document.getElementById("said").textContent = sentence; }, 400);
}

/** Calls `run` when it has not been asked for `pause` milliseconds. */
export function settled(run, pause) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...given), pause);
  };
}

/** Words with their probabilities as bars: a real table. Bars are relative to the first. */
export function wordTable(caption, words, percent, { onpick } = {}) {
  const most = Math.max(...words.map(([, p]) => p), Number.MIN_VALUE);
  const rows = words.map(([word, p]) =>
    h("tr", { vars: { "--share": p / most } },
      h("th", { scope: "row" }, onpick
        ? h("button", { type: "button", class: "pick", onclick: () => onpick(word) }, word)
        : word),
      h("td", {}, h("span", { class: "bar", "aria-hidden": "true" }), h("span", { class: "number" }, percent(p)))));
  return h("table", { class: "words" },
    h("caption", {}, caption),
    h("thead", { class: "unseen" }, h("tr", {}, h("th", { scope: "col" }, "Word"), h("th", { scope: "col" }, "Probability"))),
    h("tbody", {}, rows));
}
