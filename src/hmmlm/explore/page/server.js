// Questions to the server that this page came from, and to no other.

/** What the server said, or that it said nothing. */
export class ServerError extends Error {}

export async function ask(path, body) {
  const request = body === undefined
    ? {}
    : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, request);
  } catch {
    throw new ServerError("The server does not answer. Is hmmlm explore still running?");
  }
  let answer = null;
  try {
    answer = await response.json();
  } catch {
    throw new ServerError(`The server answered ${response.status} without a reason; see where hmmlm explore runs.`);
  }
  if (!response.ok) {
    throw new ServerError(answer.error ?? `The server answered ${response.status}; see where hmmlm explore runs.`);
  }
  return answer;
}

/** One question at a time, always the newest: an answer that was overtaken is dropped. */
export function newest(question, show, fail) {
  let asking = false;
  let waiting = null;
  return async (...given) => {
    waiting = given;
    if (asking) return;
    asking = true;
    while (waiting !== null) {
      const now = waiting;
      waiting = null;
      try {
        const answer = await question(...now);
        if (waiting === null) show(answer, ...now);
      } catch (error) {
        if (waiting === null) fail(error, ...now);
      }
    }
    asking = false;
  };
}
