// The person's settings, kept in the browser's storage.

import type { Preferences } from "./page-model.ts";
import type { BrowserStorage } from "../browser/browser-storage.ts";

const STORAGE_KEY = "khala.autopilot";
const DEFAULT_STEPS = 20;
const MAX_STEPS = 50;

/** The stored fields. Their names are a storage format. */
type StoredFields = { on: boolean; steps: number; budgetUsd: string; budgetTokens: string; agent: string | null; preview: boolean; planNotifications: boolean };

export class StoredPreferences implements Preferences {
  readonly #storage: BrowserStorage;
  #chosen: StoredFields;

  constructor(storage: BrowserStorage) {
    this.#storage = storage;
    this.#chosen = $state.raw(parsePreferences(storage.read(STORAGE_KEY)));
  }

  /** Read the settings again, which another tab may have changed. */
  reload(): void {
    this.#chosen = parsePreferences(this.#storage.read(STORAGE_KEY));
  }

  #change(changes: Partial<StoredFields>): void {
    this.#chosen = { ...this.#chosen, ...changes };
    this.#storage.write(STORAGE_KEY, this.#chosen);
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
    this.#change({ steps: clampSteps(steps) });
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

  get planNotifications(): boolean {
    return this.#chosen.planNotifications;
  }

  set planNotifications(planNotifications) {
    this.#change({ planNotifications });
  }
}

/** A number of steps from 1 to 50; 20 if it is not a positive number. */
export function clampSteps(steps: unknown): number {
  const number = Math.round(Number(steps));
  return number >= 1 ? Math.min(number, MAX_STEPS) : DEFAULT_STEPS;
}

function parsePreferences(found: unknown): StoredFields {
  const { on, steps, budgetUsd, budgetTokens, agent, preview, planNotifications } = (typeof found === "object" && found !== null ? found : {}) as Record<string, unknown>;
  const text = (value: unknown) => (typeof value === "string" ? value : "");
  return {
    on: on === true,
    steps: clampSteps(steps),
    budgetUsd: text(budgetUsd),
    budgetTokens: text(budgetTokens),
    agent: typeof agent === "string" ? agent : null,
    preview: preview === true,
    planNotifications: planNotifications === true,
  };
}
