// The dialog that asks for the server's token.

import { byId } from "./dom.js";

export function promptForToken(wrong) {
  const dialog = byId("token");
  const field = byId("token-value");
  byId("token-wrong").textContent = wrong ? "The server refused this token." : "";
  field.value = "";
  return new Promise((resolve) => {
    const listeners = new AbortController();
    const finish = (value) => {
      listeners.abort();
      if (dialog.open) dialog.close();
      field.value = "";
      resolve(value);
    };
    const { signal } = listeners;
    byId("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const value = field.value.trim();
      if (/^[\x20-\x7e]+$/.test(value)) finish(value);
      else byId("token-wrong").textContent = "A token has printable ASCII characters only.";
    }, { signal });
    byId("token-cancel").addEventListener("click", () => finish(null), { signal });
    dialog.addEventListener("close", () => finish(null), { signal });
    dialog.showModal();
  });
}
