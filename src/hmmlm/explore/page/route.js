// Where one is, in the address: #states/12, #text=the value of, #map&state=12.

export const PANELS = ["states", "text", "blocks", "map", "training", "constrain"];

/** The address as {panel, about, state, ...}: `state` is the one whose card is open, or null. */
export function read(hash = location.hash) {
  const [first, ...rest] = hash.replace(/^#/, "").split("&");
  const [, name = "", about = ""] = /^([a-z]*)(?:[/=](.*))?$/s.exec(first) ?? [];
  const place = { panel: PANELS.includes(name) ? name : "states", about: decode(about), state: null };
  for (const part of rest) {
    const [key, ...value] = part.split("=");
    if (key !== "state" && key in place) continue;
    place[key] = decode(value.join("="));
  }
  if (place.panel === "states" && place.about) [place.state, place.about] = [place.about, ""];
  if (place.state !== null) place.state = /^\d+$/.test(place.state) ? Number(place.state) : null;
  return place;
}

const decode = (text) => {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    return text;
  }
};
// Spaces as + and marks as they are: addresses that people can read.
const encode = (text) => encodeURIComponent(text).replaceAll("%20", "+").replaceAll("%2C", ",");

/** The address of a place. Not just #…, which those who cannot see it take for a way down the page. */
export function write({ panel, about = "", state = null, ...rest }) {
  let hash = `./#${panel}`;
  if (panel === "states" && state !== null) hash += `/${state}`;
  else if (about) hash += (panel === "text" ? "=" : "/") + encode(about);
  if (panel !== "states" && state !== null) hash += `&state=${state}`;
  for (const [key, value] of Object.entries(rest)) {
    if (value !== "" && value !== null && value !== undefined) hash += `&${key}=${encode(String(value))}`;
  }
  return hash;
}

/** The address of a state's card over the view that is open now. */
export const cardAddress = (state) => write({ ...read(), state });

/** Another address for what is shown already: no step of its own in the history. */
export function rename(changes) {
  history.replaceState(null, "", write({ ...read(), ...changes }));
}
