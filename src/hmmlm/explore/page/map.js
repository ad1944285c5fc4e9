// States as points: near where they are alike.
import { ask, newest } from "./server.js";
import { empty, failed, h, hue, loading, say, settled, wordTable } from "./dom.js";
import { bits, count, percent, plural } from "./numbers.js";
import { cardAddress } from "./route.js";
import { CONFIG, colour, layout, plotly } from "./plots.js";

const FEW = 3000;
/** So many points are drawn one by one; more by the graphics card. */

export function make(root, app) {
  let points = null;
  let at = null;
  let hits = null;
  let Plotly = null;
  const by = app.model.blocks ? "block" : "use";
  const choice = (value, label) => [h("input", { type: "radio", name: "colour-by", id: `by-${value}`, value, checked: value === by, onchange: () => draw() }), h("label", { for: `by-${value}` }, label)];
  const find = h("input", { type: "search", id: "map-find", placeholder: "a word or a number", autocomplete: "off", spellcheck: "false" });
  const found = h("p", { class: "muted found" });
  const plot = h("div", { class: "plot map", tabindex: "0", role: "application", "aria-roledescription": "map", "aria-label": "Map of the states. Arrow keys go to the nearest state in that direction, Enter opens its card." });
  const side = h("aside", { class: "side", "aria-label": "The state pointed at" }, empty("Point at a state, or use the arrow keys on the map. A click or Enter opens its whole card."));
  const how = h("p", { class: "muted small" });
  root.append(
    h("div", { class: "tools" },
      h("span", { class: "pair" }, h("label", { for: "map-find" }, "Find"), find),
      h("fieldset", { class: "choice" }, h("legend", {}, "Colour"), app.model.blocks ? choice("block", "block") : null, choice("use", "use")), found),
    h("div", { class: "two" }, h("div", {}, plot, how), side));

  const askCard = newest((id) => ask(`/api/states/${id}`), showCard, (error) => side.replaceChildren(failed(error)));
  const pointAt = settled((id) => askCard(id), 50);

  function showCard(state) {
    const facts = [state.block === null ? null : `block ${state.block}`, state.use === null ? null : `use ${percent(state.use)}`, `${bits(state.entropy)} bits`].filter(Boolean).join(" · ");
    side.replaceChildren(
      h("h2", {}, `State ${state.id}`), h("p", { class: "muted small" }, facts),
      wordTable("Most probable words", state.words.slice(0, 8), percent),
      h("p", {}, h("a", { href: cardAddress(state.id) }, "The whole card")));
    if (document.activeElement === plot) say(`State ${state.id}, ${facts}: ${state.words.slice(0, 4).map(([word]) => word).join(", ")}`);
  }

  function draw() {
    if (!points || !Plotly) return;
    const chosen = root.querySelector("[name=colour-by]:checked").value;
    root.querySelector("#by-use").disabled = points.use === null;
    const uses = points.use ?? points.x.map(() => 0);
    const most = uses.reduce((a, b) => Math.max(a, b), 1e-12);
    const size = points.x.length > 8000 ? 5 : 7;
    const sizes = uses.map((use) => size * (0.7 + 1.6 * Math.sqrt(Math.max(use, 0) / most)));
    const dark = colour("light-dark(#000, #fff)") !== "rgb(0, 0, 0)";
    const scale = dark ? [[0, "#2d4a63"], [0.5, "#3fa6a0"], [1, "#ffd98a"]] : [[0, "#c9d9dd"], [0.5, "#3a8f97"], [1, "#0b2f3f"]];
    const logs = uses.map((use) => Math.log10(Math.max(use, 1e-9)));
    const low = logs.reduce((a, b) => (b > -8.9 ? Math.min(a, b) : a), 0);
    const high = Math.log10(most);
    const marker = chosen === "use" && points.use === null
      ? { size, color: colour("var(--bar)"), opacity: hits ? 0.18 : 0.8 }
      : chosen === "block"
      ? { size: sizes, color: points.block.map((block) => `hsl(${hue(block)}, ${dark ? "55%, 66%" : "50%, 44%"})`), opacity: hits ? 0.18 : 0.8, line: { width: 0 } }
      : { size: sizes, color: logs, cmin: low, cmax: high, colorscale: scale, opacity: hits ? 0.18 : 0.85, line: { width: 0 }, showscale: true,
        colorbar: { thickness: 10, len: 0.6, outlinewidth: 0, title: { text: "use", side: "top" }, tickvals: ticks(low, high), ticktext: ticks(low, high).map((value) => percent(10 ** value)), tickfont: { color: colour("var(--muted)") } } };
    const type = points.x.length > FEW && webgl() ? "scattergl" : "scatter";
    const one = (ids, look) => ({ type, mode: "markers", x: ids.map((id) => points.x[id]), y: ids.map((id) => points.y[id]), customdata: ids, hoverinfo: "none", marker: look });
    const traces = [{ type, mode: "markers", x: points.x, y: points.y, hoverinfo: "none", marker }];
    if (hits) traces.push(one(hits, { size: 11, color: colour("var(--accent)"), symbol: "diamond", line: { width: 1, color: colour("var(--surface)") } }));
    if (at !== null) traces.push({ ...one([at], { size: 20, symbol: "circle-open", color: colour("var(--ink)"), line: { width: 2 } }), type: "scatter" });
    const bare = { showgrid: false, showticklabels: false, ticks: "", showline: false };
    Plotly.react(plot, traces, layout({ xaxis: bare, yaxis: { ...bare, scaleanchor: "x" }, margin: { l: 8, r: 8, t: 8, b: 8 }, dragmode: "pan", uirevision: "kept" }), { ...CONFIG, scrollZoom: true });
  }

  /** The nearest point in a direction, within 45 degrees of it. */
  function nearest(dx, dy) {
    const [x, y] = [points.x[at], points.y[at]];
    let best = null;
    let least = Infinity;
    for (let id = 0; id < points.x.length; id++) {
      const [rx, ry] = [points.x[id] - x, points.y[id] - y];
      const along = rx * dx + ry * dy;
      const across = Math.abs(rx * dy - ry * dx);
      const far = along + 2 * across;
      if (id !== at && along > 0 && across <= along && far < least) [best, least] = [id, far];
    }
    return best;
  }

  plot.addEventListener("keydown", (event) => {
    const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (!points) return;
    if (event.key in ways) {
      event.preventDefault();
      const next = at === null ? points.x.indexOf(points.x.reduce((a, b) => (Math.abs(b) < Math.abs(a) ? b : a))) : nearest(...ways[event.key]);
      if (next !== null) { at = next; draw(); pointAt(at); }
    } else if (event.key === "Enter" && at !== null) location.href = cardAddress(at);
  });

  const search = newest((q) => (q ? ask(`/api/states?${new URLSearchParams({ q, size: 200 })}`) : null), (got, q) => {
    hits = got ? got.states.map((state) => state.id) : null;
    found.textContent = got === null ? "" : got.total > hits.length ? `the first ${count(hits.length)} of ${count(got.total)} states` : plural(got.total, "state");
    if (got) say(`${plural(got.total, "state")} for ${q}`);
    draw();
  }, (error) => { found.textContent = error.message; });
  find.addEventListener("input", settled(() => search(find.value.trim()), 150));
  app.themeChanged.add(draw);
  app.useChanged.add(async () => {
    if (!points) return;
    points = await ask("/api/map");
    draw();
  });

  return {
    async show() {
      if (points) { if (Plotly) Plotly.Plots.resize(plot); return; }
      how.replaceChildren(loading("Drawing the map"));
      try {
        [points, Plotly] = await Promise.all([ask("/api/map"), plotly()]);
        draw();
        const held = points.explained ? `, of whose variance this plane shows ${percent(points.explained[0] + points.explained[1])}` : "";
        how.textContent = `Drawn from ${points.how}${held}; larger points are used more. Drag to move, scroll to zoom, double-click for all.`;
        plot.on("plotly_hover", ({ points: [point] }) => { at = point.curveNumber === 0 ? point.pointIndex : point.customdata; pointAt(at); });
        plot.on("plotly_click", ({ points: [point] }) => { location.href = cardAddress(point.curveNumber === 0 ? point.pointIndex : point.customdata); });
      } catch (error) {
        points = null;
        how.replaceChildren(failed(error));
      }
    },
  };
}

const ticks = (low, high) => Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, place) => Math.ceil(low) + place);
let drawsPoints = null;
/** Whether there is a graphics card. Looked at once, and given back: a page may hold a few of its contexts. */
function webgl() {
  if (drawsPoints === null) {
    const context = document.createElement("canvas").getContext("webgl");
    drawsPoints = context !== null;
    context?.getExtension("WEBGL_lose_context")?.loseContext();
  }
  return drawsPoints;
}
