// Texts that must be a certain way: how probable that is, and some of them.
import { ask, newest } from "./server.js";
import { empty, failed, h, say, settled } from "./dom.js";
import { count, plural, rare, short } from "./numbers.js";
import { read, rename } from "./route.js";

const FIELDS = ["contains", "not", "regex", "words"];
const LENGTH = "30";
/** Tokens that a text may have where none are asked for. */

export function make(root, app) {
  const text = (id, label, hint, given = {}) => {
    const input = h("input", { id: `c-${id}`, type: "text", autocomplete: "off", spellcheck: "false", "aria-describedby": `c-${id}-hint`, ...given });
    return [input, h("div", { class: "field" }, h("label", { for: `c-${id}` }, label), input, h("p", { class: "muted small", id: `c-${id}-hint` }, hint))];
  };
  const [contains, containsField] = text("contains", "Must contain", "Words or phrases, with commas between them.");
  const [not, notField] = text("not", "Must not contain", "Words or phrases, with commas between them.");
  const [regex, regexField] = text("regex", "Must match", "A regular expression for the whole text.", { placeholder: "(the|a) .* \\." });
  const [words, wordsField] = text("words", "Number of words", "One number, or from..to.", { placeholder: "8..16" });
  const [length, lengthField] = text("length", "Most tokens", "Up to 100, the end of the text among them.", { type: "number", min: "1", max: "100", value: LENGTH });
  const [n, nField] = text("n", "Samples", "How many.", { type: "number", min: "1", max: "20", value: "8" });
  const [seed, seedField] = text("seed", "Seed", "The same seed draws the same.", { type: "number", min: "0", value: "0" });
  const inputs = { contains, not, regex, words };
  let drawn = "";
  /** The constraint of the samples that are shown. */
  const draw = h("button", { type: "submit", class: "main" }, "Draw samples");
  const verdict = h("div", { class: "verdict" });
  const samples = h("div", {});
  const form = h("form", { class: "constraint" }, containsField, notField, regexField, wordsField, lengthField, nField, seedField, h("div", { class: "field go" }, draw));
  root.append(form, verdict, samples);

  const list = (value) => value.split(",").map((one) => one.trim()).filter(Boolean);
  const constraint = () => ({ contains: list(contains.value), not: list(not.value), regex: regex.value.trim(), words: words.value.trim(), length: Number(length.value || LENGTH) });
  const isNow = (given) => JSON.stringify(given) === JSON.stringify(constraint());
  const isEmpty = () => FIELDS.every((key) => inputs[key].value.trim() === "");
  const nothing = () => tell(empty(app.model.limits?.constraints === false
    ? `This model has ${plural(app.model.states, "state")}, too many for constraints while one waits; hmmlm constraint and hmmlm sample --must-contain take their time.`
    : "Say what a text must be: words that it contains or not, a pattern, a length. Its probability under the model stands here before anything is drawn."));

  const askProbability = newest(
    (given) => ask("/api/constrain", { ...given, n: 0, seed: 0 }), (got, given) => { if (isNow(given) && !isEmpty()) showProbability(got); },
    (error, given) => { if (isNow(given)) showError(error); });
  const askSamples = newest(
    (given, number, from) => ask("/api/constrain", { ...given, n: number, seed: from }), (got, given) => {
      draw.disabled = false;
      if (!isNow(given)) return samples.replaceChildren();
      drawn = JSON.stringify(given);
      showProbability(got);
      showSamples(got);
    },
    (error, given) => {
      draw.disabled = false;
      samples.replaceChildren();
      if (isNow(given)) showError(error);
    });

  /** What is said stands until the constraint changes, and marked as old until there is an answer. */
  function tell(...said) {
    verdict.replaceChildren(...said);
    verdict.classList.remove("stale");
    verdict.removeAttribute("aria-busy");
  }
  function wait() {
    verdict.classList.add("stale");
    verdict.setAttribute("aria-busy", "true");
  }

  function showError(error) {
    tell(failed(error));
  }

  function showProbability(got) {
    const shown = rare(got.probability, got.log10);
    const often = got.probability > 0 && got.probability < 0.5 ? `About one text in ${got.probability > 1e-4 ? count(Math.round(1 / got.probability)) : short(1 / got.probability)}.` : "";
    tell(
      h("p", { class: "big" }, h("strong", { class: "number" }, shown), " ", h("span", {}, got.sentence.replace(/^probability [^ :]+/, "probability"))),
      h("p", { class: "muted" }, often));
    say(`${got.sentence}. ${often}`);
  }

  function showSamples(got) {
    samples.replaceChildren(h("h2", { class: "third" }, plural(got.samples.length, "sample")), got.samples.length
      ? h("ol", { class: "samples drawn" }, got.samples.map((sample) => h("li", {}, marked(sample))))
      : empty("There is no such text under this model, so nothing can be drawn."));
  }

  /** A text with what met the constraint marked. */
  function marked({ text: whole, marks }) {
    const points = [...whole];
    const parts = [];
    let at = 0;
    for (const [start, end] of [...(marks ?? [])].sort((a, b) => a[0] - b[0])) {
      if (start < at) continue;
      parts.push(points.slice(at, start).join(""), h("mark", {}, points.slice(start, end).join("")));
      at = end;
    }
    return [...parts, points.slice(at).join("")];
  }

  const settle = settled(() => {
    const most = length.value === LENGTH ? "" : length.value;
    if (read().panel === "constrain") rename({ panel: "constrain", ...Object.fromEntries(FIELDS.map((key) => [key, inputs[key].value.trim()])), length: most });
    if (isEmpty()) nothing();
    else askProbability(constraint());
    // Samples of another constraint would stand below the probability of this one.
    if (!draw.disabled && drawn !== JSON.stringify(constraint())) samples.replaceChildren();
  }, 300);
  function changed() {
    if (!isEmpty()) wait();
    settle();
  }
  for (const input of [...Object.values(inputs), length]) input.addEventListener("input", changed);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (isEmpty()) { nothing(); contains.focus(); return; }
    draw.disabled = true;
    samples.replaceChildren(h("p", { class: "notice", "aria-busy": "true" }, "Drawing …"));
    askSamples(constraint(), Number(n.value) || 8, Number(seed.value) || 0);
  });
  nothing();

  return {
    show(place) {
      const given = FIELDS.some((key) => place[key]);
      if (!given) { if (!isEmpty()) changed(); return; }
      const most = place.length || LENGTH;
      if (most === length.value && FIELDS.every((key) => (place[key] ?? "") === inputs[key].value.trim())) return;
      for (const key of FIELDS) inputs[key].value = place[key] ?? "";
      length.value = most;
      changed();
    },
  };
}
