// Plotly, from this server and only when a plot is shown, in the colours and type of the page.

let arriving = null;
export function plotly() {
  arriving ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/plotly.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      arriving = null;
      reject(new Error("The server did not send plotly; run pip install 'hmmlm[explore]' and start it again."));
    };
    document.head.append(script);
  });
  return arriving;
}

/** A colour of the style sheet as numbers, in the theme of now. */
export function colour(css) {
  const probe = document.createElement("i");
  probe.style.color = css;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** What all plots share; axes are quiet, and nothing is drawn that says nothing. */
export function layout(more = {}) {
  const ink = colour("var(--ink)");
  const muted = colour("var(--muted)");
  const axis = (given = {}) => ({ gridcolor: colour("var(--line)"), zeroline: false, linecolor: colour("var(--line)"), tickcolor: colour("var(--line)"),
    tickfont: { color: muted, size: 12 }, automargin: true, fixedrange: false, ...given, title: { font: { color: muted, size: 13 }, ...given.title } });
  const { xaxis, yaxis, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
    margin: { l: 56, r: 16, t: 12, b: 44 }, hovermode: "closest", showlegend: false, autosize: true,
    hoverlabel: { bgcolor: colour("var(--surface)"), bordercolor: colour("var(--line)"), font: { color: ink, family: getComputedStyle(document.body).fontFamily } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: ink },
    ...rest, xaxis: axis(xaxis), yaxis: axis(yaxis),
  };
}

export const CONFIG = { displaylogo: false, responsive: true, displayModeBar: "hover", scrollZoom: false, doubleClick: "reset",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toggleSpikelines", "hoverClosestCartesian", "hoverCompareCartesian"] };
