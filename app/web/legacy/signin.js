// The dialog to sign in, or to make an account.

import * as account from "./account.js";
import { closable, onSubmit, tried } from "./dialogs.js";
import { inWords } from "./outbox.js";

const $ = (id) => document.getElementById(id);
const FAILED = {
  conflict: "That login belongs to another account.",
  invalid_input: "The login was not finished, or took too long. Please try again.",
  unavailable: "The sign-in service can’t be reached right now. Please try again later.",
};

function words(error) {
  if (error.code === "conflict") return "There is an account with this address already. Sign in instead.";
  if (error.code === "unauthorized") return error.message;
  if (error.code === "rate_limited") return "Too many tries. Please wait a little.";
  return inWords(error);
}

export class SignIn {
  #dialog = $("signin");
  #form = $("signin-form");
  #ways = null;
  #way = "login";

  /** `signIn(way, fields)` does it; `waiting()` tells how many chats of this browser will come along. */
  constructor({ signIn, waiting }) {
    closable(this.#dialog);
    this.waiting = waiting;
    onSubmit(this.#form, (fields) => this.#submit(signIn, fields));
    $("signin-switch").onclick = () => this.#turn(this.#way === "login" ? "register" : "login");
    $("signin-oidc").onclick = () => account.expect();
  }

  /** Ask for an address and a password; `problem` is the code with which a login elsewhere has ended. */
  async open(problem) {
    this.#turn(this.#way);
    const count = this.waiting();
    $("signin-claim").hidden = count === 0;
    $("signin-claim").textContent = count === 1 ? "The chat in this browser comes along." : `The ${count} chats in this browser come along.`;
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#ways ??= (await tried(this.#dialog, account.ways)) ?? null;
    if (problem) this.#dialog.querySelector(".wrong").textContent = FAILED[problem] ?? "Signing in did not work. Please try again.";
    this.#turn(this.#way);
  }

  #turn(way) {
    const makes = way === "register";
    this.#way = way;
    $("signin-title").textContent = makes ? "Create your account" : "Sign in";
    $("signin-submit").textContent = makes ? "Create account" : "Sign in";
    $("signin-switch").textContent = makes ? "I have an account" : "Create an account";
    $("signin-switch").hidden = this.#ways?.registration !== true;
    $("signin-name-field").hidden = $("signin-name").disabled = !makes;
    $("signin-hint").hidden = !makes;
    $("signin-password").autocomplete = makes ? "new-password" : "current-password";
    this.#drawOidc();
  }

  #drawOidc() {
    const oidc = this.#ways?.oidc;
    $("signin-elsewhere").hidden = !oidc;
    if (!oidc) return;
    $("signin-oidc").textContent = `Sign in with ${oidc.name}`;
    $("signin-oidc").href = `/api/auth/oidc/login?returnTo=${encodeURIComponent(location.pathname)}`;
  }

  async #submit(signIn, { email, password, name }) {
    const fields = { email, password, ...(name?.trim() && { name: name.trim() }) };
    const done = await tried(this.#dialog, async () => (await signIn(this.#way, fields), true), words);
    if (!done) return;
    this.#form.reset();
    this.#way = "login";
    this.#dialog.close();
  }
}
