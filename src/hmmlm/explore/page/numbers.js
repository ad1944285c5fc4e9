// Numbers as people read them: two or three digits that matter, and the unit.

const whole = new Intl.NumberFormat("en");
export const count = (number) => whole.format(number);
export const plural = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

/** A probability as a percentage of two digits; near 0 and near 1 it says on which side. */
export function percent(p) {
  if (p === null || p === undefined || Number.isNaN(p)) return "–";
  if (p === 0) return "0%";
  if (p < 1e-4) return "<0.01%";
  if (p >= 1) return "100%";
  if (p > 0.9995) return ">99.9%";
  const of100 = 100 * p;
  if (of100 >= 99.5) return `${of100.toFixed(1)}%`;
  if (of100 >= 9.95) return `${of100.toFixed(0)}%`;
  if (of100 >= 0.995) return `${of100.toFixed(1)}%`;
  return `${of100.toFixed(2)}%`;
}

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
/** 10 to some power, for what is too rare for a percentage. */
export function power(log10) {
  let exponent = Math.floor(log10);
  let front = (10 ** (log10 - exponent)).toFixed(1);
  if (front === "10.0") [front, exponent] = ["1.0", exponent + 1];
  return `${front} × 10${[...String(exponent)].map((sign) => RAISED[sign]).join("")}`;
}
/** A probability of any size, from itself and its logarithm. */
export const rare = (p, log10) =>
  p >= 1e-4 ? `${Number((100 * p).toPrecision(3))}%` : log10 === null || log10 === -Infinity ? "0" : power(log10 ?? Math.log10(p));

export const bits = (number) => (number === null ? "∞" : number >= 99.5 ? number.toFixed(0) : number.toFixed(1));
export const short = (number) => Number(number.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
