// The autopilot: whether answers go on in rounds of tools by themselves, and for how many. The browser remembers it.

import { keep, kept } from "./chats.js";

const NAME = "khala.autopilot";
const STEPS = 20;
const MOST_STEPS = 50;

export class Autopilot {
  #switch = document.getElementById("autopilot");
  #steps = document.getElementById("max-steps");
  #field = document.getElementById("max-steps-field");

  constructor() {
    const { on = false, steps = STEPS } = remembered();
    this.#switch.checked = on;
    this.#steps.value = sensible(steps);
    this.#switch.addEventListener("change", () => this.#remember());
    this.#steps.addEventListener("change", () => ((this.#steps.value = sensible(this.#steps.value)), this.#remember()));
    this.#draw();
  }

  /** What is to be said of it with a message. */
  get options() {
    return this.#switch.checked ? { autopilot: true, maxSteps: sensible(this.#steps.value) } : {};
  }

  #remember() {
    keep(NAME, JSON.stringify({ on: this.#switch.checked, steps: sensible(this.#steps.value) }));
    this.#draw();
  }

  #draw() {
    this.#field.hidden = !this.#switch.checked;
  }
}

function remembered() {
  try {
    return JSON.parse(kept(NAME)) ?? {};
  } catch {
    return {};
  }
}

/** A number of steps from 1 to 50, 20 for what is none. */
function sensible(steps) {
  const number = Math.round(Number(steps));
  return number >= 1 ? Math.min(number, MOST_STEPS) : STEPS;
}
