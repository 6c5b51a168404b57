// Estimates a task from similar runs, or roughly where there are none.

import { costOf, type Price } from "./cost.ts";
import { MIN_SIMILAR_RUNS, type SimilarRun } from "./run-history.ts";

/** `runs` is the number of similar runs it is based on. `costUsd` is a decimal string, absent if the price is unknown. */
export type Estimate = { steps: number; seconds: number; tokens: number; costUsd?: string; basis: "history" | "rough"; runs: number };

/** The number of similar runs that are considered. */
export const MAX_SIMILAR_RUNS = 9;

// The rough guess for short tasks with tools: a step for each listed item, one to look around and one to answer.
const STEPS = { min: 2, max: 20 };
const SECONDS_PER_STEP = 5;
const INSTRUCTIONS_TOKENS = 1_500;
const CHARACTERS_PER_TOKEN = 4;
const OUTPUT_TOKENS_PER_STEP = 300;
const LISTED = /^\s*(?:[-*•]|\d+[.)])\s/gmu;

/** The medians of at least three similar runs, otherwise the rough guess. `price` is that of the requested model. */
export function estimate(task: string, nearest: readonly SimilarRun[], price: Price | null): Estimate {
  return nearest.length >= MIN_SIMILAR_RUNS ? fromHistory(nearest, price) : rough(task, price);
}

function fromHistory(nearest: readonly SimilarRun[], price: Price | null): Estimate {
  const inputTokens = Math.round(median(nearest.map((run) => run.inputTokens)));
  const outputTokens = Math.round(median(nearest.map((run) => run.outputTokens)));
  return {
    steps: Math.round(median(nearest.map(({ steps }) => steps))),
    seconds: Math.round(median(nearest.map(({ ms }) => ms)) / 100) / 10,
    tokens: inputTokens + outputTokens,
    ...priced(price, inputTokens, outputTokens),
    basis: "history",
    runs: nearest.length,
  };
}

/** Each step reads all previous steps again, so the input grows with the square of the number of steps. */
function rough(task: string, price: Price | null): Estimate {
  const steps = Math.min(STEPS.max, STEPS.min + (task.match(LISTED)?.length ?? 0));
  const first = INSTRUCTIONS_TOKENS + Math.ceil(task.length / CHARACTERS_PER_TOKEN);
  const outputTokens = steps * OUTPUT_TOKENS_PER_STEP;
  const inputTokens = steps * first + (OUTPUT_TOKENS_PER_STEP * steps * (steps - 1)) / 2;
  return { steps, seconds: steps * SECONDS_PER_STEP, tokens: inputTokens + outputTokens, ...priced(price, inputTokens, outputTokens), basis: "rough", runs: 0 };
}

function priced(price: Price | null, inputTokens: number, outputTokens: number): { costUsd?: string } {
  const costUsd = price && costOf(price, { inputTokens, outputTokens });
  return costUsd === null ? {} : { costUsd };
}

/** The median of a list that is not empty. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const [below = NaN] = sorted.slice((sorted.length - 1) >> 1);
  const [above = NaN] = sorted.slice(sorted.length >> 1);
  return (below + above) / 2;
}
