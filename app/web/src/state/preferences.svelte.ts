// What the person chose in this browser, which remembers it.

import type { Preferences } from "./shape.ts";
import type { Kept } from "./storage.ts";

const NAME = "khala.autopilot";
const STEPS = 20;
const MOST_STEPS = 50;

/** As it is kept, under names that must stay what they are. */
type Written = { on: boolean; steps: number; budgetUsd: string; budgetTokens: string; agent: string | null; preview: boolean };

export class KeptPreferences implements Preferences {
  readonly #kept: Kept;
  readonly #turned: () => void;
  #chosen: Written;

  /** `turned()` is told when another agent is chosen, or none. */
  constructor(kept: Kept, turned: () => void = () => undefined) {
    this.#kept = kept;
    this.#turned = turned;
    this.#chosen = $state.raw(sound(kept.read(NAME)));
  }

  /** Another tab may have changed it. */
  reread(): void {
    this.#become(sound(this.#kept.read(NAME)));
  }

  #change(changes: Partial<Written>): void {
    this.#become({ ...this.#chosen, ...changes });
    this.#kept.write(NAME, this.#chosen);
  }

  #become(chosen: Written): void {
    const before = this.#chosen.agent;
    this.#chosen = chosen;
    if (chosen.agent !== before) this.#turned();
  }

  get autopilot(): boolean {
    return this.#chosen.on;
  }

  set autopilot(on) {
    this.#change({ on });
  }

  get maxSteps(): number {
    return this.#chosen.steps;
  }

  set maxSteps(steps) {
    this.#change({ steps: sensible(steps) });
  }

  get budgetUsd(): string {
    return this.#chosen.budgetUsd;
  }

  set budgetUsd(budgetUsd) {
    this.#change({ budgetUsd });
  }

  get budgetTokens(): string {
    return this.#chosen.budgetTokens;
  }

  set budgetTokens(budgetTokens) {
    this.#change({ budgetTokens });
  }

  get agent(): string | null {
    return this.#chosen.agent;
  }

  set agent(agent) {
    this.#change({ agent });
  }

  get preview(): boolean {
    return this.#chosen.preview;
  }

  set preview(preview) {
    this.#change({ preview });
  }
}

/** A number of steps from 1 to 50, 20 for what is none. */
export function sensible(steps: unknown): number {
  const number = Math.round(Number(steps));
  return number >= 1 ? Math.min(number, MOST_STEPS) : STEPS;
}

function sound(found: unknown): Written {
  const { on, steps, budgetUsd, budgetTokens, agent, preview } = (typeof found === "object" && found !== null ? found : {}) as Record<string, unknown>;
  const text = (value: unknown) => (typeof value === "string" ? value : "");
  return {
    on: on === true,
    steps: sensible(steps),
    budgetUsd: text(budgetUsd),
    budgetTokens: text(budgetTokens),
    agent: typeof agent === "string" ? agent : null,
    preview: preview === true,
  };
}
