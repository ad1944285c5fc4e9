// How the model came to be: perplexity and learning rate over the text that was read.
import { ask } from "./server.js";
import { empty, failed, h, loading } from "./dom.js";
import { count, short } from "./numbers.js";
import { CONFIG, colour, layout, plotly } from "./plots.js";

export function make(root, app) {
  if (!app.model.has_training) {
    root.append(empty("This folder has no log of a training (metrics.jsonl), as of a model that was converted or made by hand. hmmlm train writes one."));
    return { show() {} };
  }
  let got = null;
  let Plotly = null;
  const head = h("p", { class: "summary" });
  const loss = h("div", { class: "plot curve", role: "group" });
  const rate = h("div", { class: "plot rate", role: "group" });
  const table = h("details", { class: "as-table" });
  const wait = h("div", {}, loading("Reading the log"));
  root.append(wait, head, loss, rate, table);

  function draw() {
    if (!got || !Plotly) return;
    const { curves: { training, each_step: steps, validation, learning_rate: rates }, best } = got;
    const [line, point] = [colour("var(--accent)"), colour("var(--warm)")];
    const hover = "%{y:.4s}<extra></extra>";
    const small = loss.clientWidth < 560;
    const end = 1.03 * got.tokens;
    const traces = [
      { x: steps.tokens, y: steps.values, mode: "lines", name: "each step", line: { color: line, width: 1 }, opacity: 0.3, hoverinfo: "skip", showlegend: !small },
      { x: training.tokens, y: training.values, mode: "lines", name: small ? "training" : "training, smoothed", line: { color: line, width: 2 }, hovertemplate: `training ${hover}` },
      { x: validation.tokens, y: validation.values, mode: "lines+markers", name: "validation", line: { color: point, width: 1.5, dash: "dot" }, marker: { size: 8, symbol: "diamond" }, hovertemplate: `validation ${hover}` },
    ];
    if (best) {
      traces.push({ x: [best.tokens], y: [best.perplexity], mode: "markers+text", name: "best validation", marker: { size: 16, symbol: "circle-open", color: point, line: { width: 2 } }, text: [`${short(best.perplexity)}`], textposition: "top center", textfont: { color: colour("var(--ink)"), size: 13 }, hoverinfo: "skip", cliponaxis: false, showlegend: !small });
    }
    const seen = [...training.values, ...validation.values];
    // A run that blows up leaves the picture.
    const range = [Math.log10(Math.min(...seen) / 1.15), Math.log10(Math.min(Math.max(...seen), 2 * training.values[0]) * 1.1)];
    Plotly.react(loss, traces, layout({ showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { l: 64, r: 24, t: 36, b: 44 },
      xaxis: { title: { text: "tokens read" }, range: [0, end], showgrid: false }, yaxis: { title: { text: "perplexity (log scale)" }, type: "log", range, dtick: "D2", tickformat: "~s" } }), CONFIG);
    Plotly.react(rate, [{ x: rates.tokens, y: rates.values, mode: "lines", line: { color: line, width: 2 }, hovertemplate: "%{y:.3g}<extra></extra>" }],
      layout({ margin: { l: 64, r: 24, t: 12, b: 44 }, xaxis: { title: { text: "tokens read" }, range: [0, end], showgrid: false }, yaxis: { title: { text: "learning rate" }, rangemode: "tozero", nticks: 4 } }), CONFIG);
  }

  function tell() {
    const { curves, best } = got;
    const parts = [["Steps", count(got.steps)], ["Tokens read", count(got.tokens)],
      best ? ["Best validation perplexity", `${short(best.perplexity)} at step ${count(best.step)}`] : null,
      ["Training perplexity at the end", short(curves.training.values.at(-1))]];
    head.replaceChildren(...parts.filter(Boolean).map(([key, value]) => h("span", {}, `${key} `, h("strong", {}, value))));
    loss.setAttribute("aria-label", `Perplexity over tokens read. ${head.textContent}`);
    rate.setAttribute("aria-label", "Learning rate over tokens read");
    const { tokens, steps, values } = curves.validation;
    table.replaceChildren(h("summary", {}, "The checks as a table"), values.length ? h("table", { class: "plain" },
      h("caption", {}, "Perplexity on held-out text during training"),
      h("thead", {}, h("tr", {}, ...["Step", "Tokens read", "Validation perplexity"].map((one) => h("th", { scope: "col" }, one)))),
      h("tbody", {}, values.map((value, place) => h("tr", {}, h("th", { scope: "row", class: "number" }, count(steps[place])), h("td", { class: "number" }, count(tokens[place])), h("td", { class: "number" }, short(value)))))) : empty("Nothing was validated while this model was trained."));
  }

  app.themeChanged.add(draw);
  return {
    async show() {
      if (got) { if (Plotly) [loss, rate].forEach((plot) => Plotly.Plots.resize(plot)); return; }
      try {
        [got, Plotly] = await Promise.all([ask("/api/training"), plotly()]);
        wait.replaceChildren();
        tell();
        draw();
      } catch (error) {
        got = null;
        wait.replaceChildren(failed(error));
      }
    },
  };
}
