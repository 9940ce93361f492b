// What a request that failed says, with a button to try again where that may help.

import { RequestError } from "./api.js";
import { counted, el } from "./dom.js";

const PASSING = [null, 401, 408, 429, 503]; // status; null: the server did not answer

// A RequestError as it is; what the page itself did wrong is logged.
export function asRequestError(error) {
  if (error instanceof RequestError) return error;
  console.error(error);
  return new RequestError("The page failed", error.message);
}

export function failurePart(error, again = null) {
  const box = el("div", { class: "box error" }, el("p", { class: "strong" }, error.title), el("p", {}, error.message));
  if (again && PASSING.includes(error.status) && error.param === null) {
    const button = el("button", { type: "button" }, "Try again");
    button.addEventListener("click", () => again());
    box.append(button);
    if (error.retryAfter !== null) countDown(button, error.retryAfter);
  }
  return box;
}

// The seconds of Retry-After on the button, which can be pressed all the same.
function countDown(button, seconds) {
  button.textContent = seconds > 0 ? `Try again (in ${counted(seconds, "second")})` : "Try again";
  if (seconds > 0) setTimeout(() => countDown(button, seconds - 1), 1000);
}
