// Questions to the server. The token comes in the fragment of the address, is kept for this tab, and goes out as a header.

const KEY = "netpold-token";

function readToken() {
  const given = location.hash.slice(1);
  if (/^[0-9a-f]{64}$/.test(given)) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", "/");
  }
  return sessionStorage.getItem(KEY) ?? "";
}

const token = readToken();

function request(path, question, signal) {
  return fetch(`/api/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
    body: JSON.stringify(question),
    signal,
  });
}

async function refusal(response) {
  const answer = await response.json().catch(() => ({}));
  const error = new Error(answer.error ?? `the server answered ${response.status}`);
  error.status = response.status;
  return error;
}

/** Returns the answer to a question; throws an error with `status` and the server's reason. */
export async function ask(path, question = {}, signal = undefined) {
  let response;
  try {
    response = await request(path, question, signal);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer: has `netpold ui` ended?");
  }
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** Passes server-sent events to `each` until the stream ends or `signal` aborts it. */
export async function follow(path, question, each, signal) {
  const response = await request(path, question, signal);
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) each(JSON.parse(event.slice(6)));
    }
  }
}
