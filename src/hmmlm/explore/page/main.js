// The page: its tabs, its theme, the address, and the card of a state.
import { ask } from "./server.js";
import { failed, h, say } from "./dom.js";
import { count, plural } from "./numbers.js";
import { PANELS, read, rename, write } from "./route.js";
import { makeCard } from "./card.js";

const THEMES = ["auto", "light", "dark"];
const panels = {};
const app = { model: null, themeChanged: new Set(), useChanged: new Set() };
const tabs = Object.fromEntries(PANELS.map((name) => [name, document.getElementById(`tab-${name}`)]));
const card = makeCard(document.getElementById("card"), app);

async function show() {
  const place = read();
  document.body.dataset.panel = place.panel;
  for (const name of PANELS) {
    const here = name === place.panel;
    tabs[name].setAttribute("aria-selected", String(here));
    tabs[name].tabIndex = here ? 0 : -1;
    document.getElementById(`panel-${name}`).hidden = !here;
  }
  document.title = `${tabs[place.panel].textContent} · ${app.model?.name ?? "hmmlm explore"}`;
  if (app.model === null) return;
  // Each view is a module of its own, read when it is first looked at.
  const root = document.getElementById(`panel-${place.panel}`);
  panels[place.panel] ??= import(`./${place.panel}.js`).then((module) => {
    root.replaceChildren();
    return module.make(root, app);
  }, () => { throw new Error("The server did not send this view. Is hmmlm explore still running?"); });
  let panel;
  try {
    panel = await panels[place.panel];
  } catch (error) {
    delete panels[place.panel];
    return lost(root, error);
  }
  if (read().panel === place.panel) panel.show(place);
  if (place.state === null) card.close();
  else card.open(place.state);
}

/** A view that could not be made says so. */
function lost(root, error) {
  root.replaceChildren(failed(error), h("p", { class: "notice" },
    h("button", { type: "button", onclick: () => location.reload() }, "Try again")));
}

/** Shares of use are counted while the page is in use already; views are told when they are there. */
async function awaitUse() {
  const isCounted = app.model.use?.state !== "computing";
  while (app.model.use?.state === "computing") {
    await new Promise((resolve) => setTimeout(resolve, 700));
    try {
      app.model = await ask("/api/model");
    } catch {
      continue;
    }
    describe(app.model);
  }
  // What was counted before the page asked is in what it has.
  if (!isCounted) for (const tell of app.useChanged) tell();
  awaitCheck();
}

/** The tables are checked last of all, which takes a while: that they are not sound is said when it is known. */
async function awaitCheck() {
  while (app.model.check?.state === "waiting") {
    await new Promise((resolve) => setTimeout(resolve, 2000));
    try {
      app.model = await ask("/api/model");
    } catch {
      continue;
    }
  }
  describe(app.model);
  if (app.model.check?.state === "failed") say(unsound(app.model));
}

const unsound = (model) => `this model is not sound: ${model.check.problem}`;

function describe(model) {
  document.getElementById("name").textContent = model.name;
  const facts = [
    plural(model.states, "state"),
    model.blocks ? plural(model.blocks, "block") : null,
    plural(model.words, "word"),
    model.parameters ? `${count(model.parameters)} numbers` : null,
  ];
  if (model.use?.state === "computing") facts.push(`counting use, ${Math.round(100 * model.use.progress)}%`);
  if (model.use?.state === "failed") facts.push(`use could not be counted: ${model.use.problem}`);
  if (model.check?.state === "failed") facts.push(unsound(model));
  document.getElementById("facts").textContent = facts.filter(Boolean).join(" · ");
  document.getElementById("facts").title = model.use_from ? `Use: ${model.use_from}` : "";
}

document.getElementById("tabs").addEventListener("click", (event) => {
  const name = event.target.closest("[role=tab]")?.id.replace("tab-", "");
  if (name && name !== read().panel) location.href = write({ panel: name });
});
document.getElementById("tabs").addEventListener("keydown", (event) => {
  const now = PANELS.indexOf(read().panel);
  const last = PANELS.length - 1;
  const goals = { ArrowRight: now === last ? 0 : now + 1, ArrowLeft: now === 0 ? last : now - 1, Home: 0, End: last };
  if (!(event.key in goals)) return;
  event.preventDefault();
  const name = PANELS[goals[event.key]];
  tabs[name].focus();
  location.href = write({ panel: name });
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById(`panel-${read().panel}`).focus();
});

const themeButton = document.getElementById("theme");
function nameTheme() {
  themeButton.textContent = `Theme: ${document.documentElement.dataset.theme ?? "auto"}`;
}
function themeWasChanged() {
  for (const draw of app.themeChanged) draw();
}
themeButton.addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("hmmlm-theme", next);
  } catch {
    // It lasts as long as the page, then.
  }
  nameTheme();
  themeWasChanged();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeWasChanged);

document.getElementById("card").addEventListener("close", () => {
  if (read().state !== null) rename({ state: null });
});
addEventListener("hashchange", show);
nameTheme();
show();
try {
  app.model = await ask("/api/model");
  describe(app.model);
  await show();
  awaitUse();
} catch (error) {
  document.getElementById("facts").textContent = "";
  lost(document.getElementById(`panel-${read().panel}`), error);
}
