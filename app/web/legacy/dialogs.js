// What all dialogs share: asking, forms that wait for an answer and show a refusal, and lists of rows.

import { Refusal, isPassing } from "./khala.js";
import { inWords } from "./outbox.js";
import { make } from "./elements.js";

const $ = (id) => document.getElementById(id);

/** Ask before what can't be undone; whether the person says yes. */
export async function confirmed({ title, text, yes }) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  $("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  return dialog.returnValue === "yes";
}

/** Ask the server; a "no" is said in the dialog's `.wrong`, and the answer is undefined then. */
export async function tried(dialog, ask, words = inWords) {
  const wrong = dialog.querySelector(".wrong");
  wrong.textContent = "";
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof Refusal) && !isPassing(error)) throw error;
    wrong.textContent = words(error);
    wrong.scrollIntoView({ block: "nearest" });
    return undefined;
  }
}

/** Let a form, when it is submitted, do `act` with its fields' values, once at a time. */
export function onSubmit(form, act) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    if (button.disabled) return;
    button.disabled = true;
    await act(Object.fromEntries(new FormData(form)));
    button.disabled = false;
  });
}

/** One line of a list: what it is, more about it, and what can be done. */
export function row(title, detail, ...actions) {
  const words = make("div", { className: "row-words" }, make("span", { textContent: title }), make("span", { className: "row-detail", textContent: detail }));
  return make("li", { className: "row" }, words, ...actions);
}

export function button(textContent, onclick, { label, danger } = {}) {
  const made = make("button", { type: "button", className: danger ? "small danger" : "small", textContent, onclick });
  if (label) made.setAttribute("aria-label", label);
  return made;
}

/** Fill a list with rows, or say that there are none, or that nobody knows. */
export function fill(list, rows, none) {
  const instead = make("li", { className: "row none", textContent: rows ? none : "This could not be loaded." });
  list.replaceChildren(...(rows?.length ? rows : [instead]));
}

/** "12 Mar 2026, 14:05" */
export function moment(time) {
  return new Date(time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

/** Close at the dialog's own button, and at a click beside it. */
export function closable(dialog) {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("pointerdown", (event) => event.target === dialog && beside(dialog, event) && dialog.close());
}

function beside(dialog, { clientX, clientY }) {
  const { left, right, top, bottom } = dialog.getBoundingClientRect();
  return clientX < left || clientX > right || clientY < top || clientY > bottom;
}
