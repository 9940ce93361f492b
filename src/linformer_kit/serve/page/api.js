// Requests to the server, and its errors in plain words.

let token = null; // in memory only
let askForToken = async () => null;

const TITLES = {
  401: "The token is missing or wrong",
  403: "The server refused this page",
  404: "Not found on the server",
  408: "The answer took too long",
  413: "This is more than the server takes",
  429: "The server is busy",
  503: "The server is shutting down",
};

export class RequestError extends Error {
  constructor(title, message, { status = null, param = null, retryAfter = null } = {}) {
    super(message);
    this.title = title;
    this.status = status;
    this.param = param;
    this.retryAfter = retryAfter; // seconds
  }
}

// `ask(wrong)` returns a token, or null if the reader gives none.
export function useTokenPrompt(ask) {
  askForToken = ask;
}

export async function request(path, { body, signal } = {}) {
  for (;;) {
    const headers = {};
    if (token !== null) headers.Authorization = `Bearer ${token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method: body === undefined ? "GET" : "POST",
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
        cache: "no-store",
        credentials: "omit",
      });
    } catch (error) {
      throw fromFetch(error);
    }
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401) throw error;
    const given = await askForToken(token !== null);
    if (given === null) throw error;
    token = given;
  }
}

export async function requestJson(path, options) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch (error) {
    throw fromFetch(error);
  }
}

// The events of a stream, parsed. It ends with [DONE]; anything else is an error.
export async function* streamedEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      rest += value;
      const lines = rest.split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new RequestError("The answer broke off", event.error.message ?? "");
        yield event;
      }
    }
  } catch (error) {
    throw error instanceof RequestError ? error : fromFetch(error);
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new RequestError("The answer broke off", "The connection ended before the answer did.");
}

function fromFetch(error) {
  if (error.name === "AbortError") return error;
  return new RequestError(
    "The server did not answer",
    "It may have been stopped, or the connection was lost.",
  );
}

async function errorOf(response) {
  const { status } = response;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // not the JSON of this server: a proxy, for instance
  }
  const seconds = Number(response.headers.get("Retry-After"));
  const title = TITLES[status] ?? (status >= 500 ? "The server failed" : "This request cannot be answered");
  return new RequestError(title, error.message ?? `The server answered with status ${status}.`, {
    status,
    param: error.param ?? null,
    retryAfter: response.headers.has("Retry-After") && seconds >= 0 ? seconds : null,
  });
}
