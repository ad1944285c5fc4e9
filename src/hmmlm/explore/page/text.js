// A text word by word: surprisal, posterior over states, the best path, gaps, and what comes next.
import { ask, newest } from "./server.js";
import { empty, failed, h, hue, say, settled, wordTable } from "./dom.js";
import { bits, percent, plural, short } from "./numbers.js";
import { cardAddress, read, rename } from "./route.js";

const HOT = 12;
/** Surprisal, in bits, that has the full colour. */

export function make(root, app) {
  let answer = null;
  let answered = "";
  /** The text that the answer is about. */
  let chosen = 0;
  // A piece of a word is not spelt as it is written: it cannot be put into a text by a click.
  const picking = (onpick) => (app.model.pieces ? {} : { onpick });
  let replaced = [];
  /** For each gap in turn, what stood there: a word, and whether spaces were put around its gap; null where it was typed as a gap. */
  let coming = null;
  /** The same of the text that was asked about last, until there is an answer. */

  const input = h("textarea", { id: "line", rows: "1", spellcheck: "false", autocomplete: "off", placeholder: "Type a sentence …",
    maxlength: app.model.limits?.text_characters ? String(app.model.limits.text_characters) : null });
  const trouble = h("div", {});
  const summary = h("p", { class: "summary" });
  const strip = h("ol", { class: "strip", "aria-label": "The words of the text" });
  const behind = h("div", { class: "behind" });
  const fills = h("div", { class: "fills" });
  const table = h("details", { class: "as-table" });
  const next = h("section", { class: "next", "aria-label": "What comes next" });
  const key = h("p", { class: "key muted small" }, "Shade: surprisal, 0", h("span", { class: "ramp", "aria-hidden": "true" }), `${HOT} bits. Columns: the posterior over states. Below: the best path.`);
  const hint = empty("Type a sentence, and every word shows how surprising it is, which hidden states may be behind it, and what could come next.");
  root.append(
    h("div", { class: "entry" }, h("label", { for: "line" }, "Your text"), input,
      h("p", { class: "muted small" }, "Click a word to make it a gap, and again to have it back. A ", h("kbd", {}, "?"), " that stands alone is a gap too (", h("kbd", {}, "\\?"), " is a question mark).")),
    trouble,
    h("div", { class: "two" },
      h("div", { class: "reading" }, hint, summary, key, strip, fills, behind, table), next));

  const askText = newest((text) => ask("/api/text", { text }), showText, showError);
  const askNext = newest((text) => ask("/api/next", { text }), (got, text) => showNext(got.next, text), showError);
  const askFill = newest((text) => ask("/api/fill", { text }), showFill, showNoFill);
  // What is there when one rests, which may have changed by a click since: an older text would overtake it.
  const soon = settled(() => { if (!hasStar(input.value)) askText(input.value); }, 180);
  const name = settled((text) => { if (read().panel === "text") rename({ panel: "text", about: text }); }, 300);

  /** The text has changed: what comes next at once, the rest when one rests. */
  function changed({ now = false } = {}) {
    const text = input.value;
    name(text);
    // Of a gap of unknown length only its fillings can be told.
    if (hasStar(text)) return askFill(text);
    // While there is a gap, what comes next takes the whole answer.
    if (!hasGap(text)) askNext(text);
    if (now) askText(text);
    else soon();
    strip.classList.add("stale");
  }

  function showError(error, text) {
    if (text !== input.value) return;
    // No reading of another text stays beside a text that has none.
    if (strip.contains(document.activeElement)) input.focus();
    clear();
    next.replaceChildren();
    fills.replaceChildren();
    strip.classList.remove("stale");
    trouble.replaceChildren(failed(error));
  }

  function showText(got, text) {
    // What was typed meanwhile has its own answer coming.
    if (text !== input.value) return;
    answer = got;
    answered = text;
    trouble.replaceChildren();
    strip.classList.remove("stale");
    const gaps = got.tokens.filter((token) => token.gap).length;
    replaced = coming ?? replaced;
    coming = null;
    if (gaps !== replaced.length) replaced = Array(gaps).fill(null);
    hint.hidden = text.trim() !== "";
    chosen = Math.min(chosen, got.tokens.length - 1);
    drawStrip();
    drawBehind();
    drawTable();
    if (got.next) showNext(got.next, text);
    summary.replaceChildren(...sum(got));
    key.hidden = hint.hidden === false;
    if (!gaps) say(`${summary.textContent}. Next: ${got.next.slice(0, 3).map(([word, p]) => `${word} ${percent(p)}`).join(", ")}`);
    if (gaps) askFill(text);
    else fills.replaceChildren();
  }

  function sum(got) {
    const total = got.nats === null ? null : got.nats / Math.LN2;
    const parts = [["Surprisal", `${bits(total)} bits`], ["Perplexity", got.perplexity === null ? "∞" : short(got.perplexity)],
      ["Best path", `${percent(got.path_probability)} of the posterior`]];
    return parts.map(([key, value]) => h("span", {}, `${key} `, h("strong", {}, value)));
  }

  function drawStrip() {
    const held = [...strip.children].findIndex((item) => item.contains(document.activeElement));
    let gap = -1;
    strip.replaceChildren(...answer.tokens.map((token, place) => {
      if (token.gap) gap += 1;
      const mine = gap;
      const heat = token.gap || token.bits === null ? 0 : Math.min(1, token.bits / HOT);
      const label = token.gap
        ? `gap${replaced[mine] ? `, was ${replaced[mine].word}` : ""}`
        : `${token.text}, ${bits(token.bits)} bits`;
      const word = token.span === null
        ? h("span", { class: "token end" }, token.text)
        : h("button", { type: "button", class: "token", "aria-pressed": String(Boolean(token.gap)), "aria-label": label, onclick: () => turn(place, mine), onfocus: () => choose(place) },
          token.gap ? "?" : token.text);
      return h("li", { vars: { "--heat": heat }, class: token.gap ? "gap" : null, onpointerenter: () => choose(place) },
        word,
        h("span", { class: "bits number", "aria-hidden": "true" }, token.gap ? "gap" : bits(token.bits)),
        stack(token),
        h("a", { class: "state", href: cardAddress(token.path), vars: { "--hue": hue(token.path) }, "aria-label": `best path: state ${token.path}`, onfocus: () => choose(place) }, String(token.path)));
    }));
    if (held >= 0) strip.children[Math.min(held, strip.children.length - 1)].querySelector("button, a").focus();
    mark();
  }

  /** The posterior at one place as a column; what it says in words is below and in the table. */
  function stack(token) {
    return h("div", { class: "stack", "aria-hidden": "true" },
      token.states.map(([id, p]) =>
        h("i", { vars: { "--p": p, "--hue": hue(id) }, title: `state ${id}: ${percent(p)}` }, p > 0.16 ? h("b", {}, String(id)) : null)),
      token.rest > 0.002 ? h("i", { class: "rest", vars: { "--p": token.rest }, title: `all others: ${percent(token.rest)}` }) : null);
  }

  function choose(place) {
    if (place === chosen) return;
    chosen = place;
    mark();
    drawBehind();
  }
  const mark = () => [...strip.children].forEach((item, place) => item.classList.toggle("chosen", place === chosen));

  function drawBehind() {
    const token = answer?.tokens[chosen];
    if (!token) return behind.replaceChildren();
    behind.replaceChildren(h("table", { class: "words" },
      h("caption", {}, token.gap ? "States behind the gap" : h("span", {}, "States behind ", h("q", {}, token.text))),
      h("thead", { class: "unseen" }, h("tr", {}, ...["State", "Its words", "Posterior"].map((one) => h("th", { scope: "col" }, one)))),
      h("tbody", {}, token.states.map(([id, p]) =>
        h("tr", { vars: { "--share": p } },
          h("th", { scope: "row" }, h("a", { class: "state", href: cardAddress(id), vars: { "--hue": hue(id) } }, String(id)), id === token.path ? h("span", { class: "small muted on-path" }, " best path") : null),
          h("td", { class: "names" }, answer.words[id].join(", ")),
          h("td", {}, h("span", { class: "bar", "aria-hidden": "true" }), h("span", { class: "number" }, percent(p))))),
      token.rest > 0.0005 ? h("tr", { vars: { "--share": token.rest } }, h("th", { scope: "row" }, "others"), h("td", {}),
        h("td", {}, h("span", { class: "bar", "aria-hidden": "true" }), h("span", { class: "number" }, percent(token.rest)))) : null)));
  }

  function drawTable() {
    const open = table.open;
    table.replaceChildren(h("summary", {}, "The same as a table"),
      h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "The text as a table" }, h("table", { class: "plain" },
        h("caption", {}, "Surprisal, best path and posterior of each word"),
        h("thead", {}, h("tr", {}, ...["Word", "Bits", "Nats", "Best path", "Posterior over states"].map((one) => h("th", { scope: "col" }, one)))),
        h("tbody", {}, answer.tokens.map((token) => h("tr", {},
          h("th", { scope: "row" }, token.gap ? "(gap)" : token.text),
          h("td", { class: "number" }, token.gap ? "–" : bits(token.bits)),
          h("td", { class: "number" }, token.gap ? "–" : bits(token.nats)),
          h("td", { class: "number" }, String(token.path)),
          h("td", {}, token.states.slice(0, 4).map(([id, p]) => `${id} ${percent(p)}`).join(", "))))))));
    table.open = open;
  }

  function showNext(words, text) {
    if (text !== input.value) return;
    trouble.replaceChildren();
    next.replaceChildren(words.length
      ? wordTable(text.trim() ? "What comes next" : "How texts begin", words, percent, picking(append))
      : empty("Nothing can come next."));
  }

  function append(word) {
    const text = input.value;
    input.value = `${text}${!text || /\s$/.test(text) ? "" : " "}${word} `;
    chosen = answer ? answer.tokens.length - 1 : 0;
    changed({ now: true });
    input.focus();
  }

  /** A word becomes a gap, a gap its word again (or its most probable one, if it never had one). */
  function turn(place, gap) {
    const token = answer.tokens[place];
    if (!stands(token)) return;
    const points = [...input.value];
    const [start, end] = token.span;
    const gaps = [...(coming ?? replaced)];
    const isSpace = (at) => /\s/.test(points[at] ?? "");
    if (token.gap) {
      const was = gaps[gap] ?? { word: next.querySelector(`[data-position="${place}"] .pick`)?.textContent, before: false, after: false };
      if (!was.word) return;
      put(points, start - (was.before && isSpace(start - 1)), end + (was.after && isSpace(end)), was.word);
      gaps.splice(gap, 1);
    } else {
      // A gap is alone between spaces; a piece of a word may have none around it.
      const was = { word: points.slice(start, end).join(""), before: start > 0 && !isSpace(start - 1), after: end < points.length && !isSpace(end) };
      put(points, start, end, `${was.before ? " " : ""}?${was.after ? " " : ""}`);
      gaps.splice(gap + 1, 0, was);
    }
    coming = gaps;
    chosen = place;
    changed({ now: true });
  }

  /** Whether a token still stands where the answer has it: up to its end the text is the same, and it ends there. */
  function stands(token) {
    const upTo = (text) => [...text].slice(0, token.span[1] + 1).join("").trimEnd();
    return upTo(input.value) === upTo(answered);
  }

  function put(points, start, end, word) {
    input.value = points.slice(0, start).join("") + word + points.slice(end).join("");
  }

  function showFill(got, text) {
    if (text !== input.value) return;
    if (hasStar(text)) clear();
    next.replaceChildren(...got.gaps.map((gap, number) => {
      const was = replaced[number] ? ` (was “${replaced[number].word}”)` : "";
      const box = wordTable(got.gaps.length > 1 ? `Words for gap ${number + 1}${was}` : `Words for the gap${was}`, gap.words, percent, answer ? picking((word) => fillIn(number, word)) : {});
      box.dataset.position = gap.position;
      return box;
    }));
    fills.replaceChildren(
      h("h2", { class: "third" }, "Filled in, with the probability of the words given the rest"),
      h("ul", { class: "samples" }, got.samples.map((sample) => h("li", {}, h("span", {}, sample.text), " ", h("span", { class: "number muted" }, percent(sample.p))))));
    say(`${plural(got.gaps.length, "gap")}. ${got.gaps.map((gap) => gap.words.slice(0, 3).map(([word, p]) => `${word} ${percent(p)}`).join(", ")).join("; ")}`);
  }

  function showNoFill(error, text) {
    if (text !== input.value) return;
    if (hasStar(text)) { clear(); next.replaceChildren(); }
    fills.replaceChildren(failed(error));
  }

  /** Of a text with a gap of unknown length there is no reading word by word. */
  function clear() {
    answer = coming = null;
    trouble.replaceChildren();
    for (const part of [summary, strip, behind, table]) part.replaceChildren();
    key.hidden = hint.hidden = true;
  }

  function fillIn(number, word) {
    const places = answer.tokens.map((token, place) => (token.gap ? place : -1)).filter((place) => place >= 0);
    const token = answer.tokens[places[number]];
    if (!stands(token)) return;
    put([...input.value], token.span[0], token.span[1], word);
    coming = (coming ?? replaced).toSpliced(number, 1);
    changed({ now: true });
  }

  input.addEventListener("input", () => changed());
  input.addEventListener("keydown", (event) => {
    // A text is one line: Enter asks at once.
    if (event.key === "Enter") { event.preventDefault(); changed({ now: true }); }
  });

  let begun = false;
  return {
    show(place) {
      if (begun && (place.about === input.value || !place.about)) {
        if (!place.about && input.value) rename({ about: input.value });
        return;
      }
      begun = true;
      input.value = place.about;
      changed({ now: true });
    },
  };
}

const hasStar = (text) => /(^|\s)\*(?=\s|$)/.test(text);
const hasGap = (text) => /(^|\s)\?(?=\s|$)/.test(text);
