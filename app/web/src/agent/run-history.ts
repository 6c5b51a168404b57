// The runs of this browser, by a vector of their task, for estimates. The text of a task is not stored.

import { readAll, write } from "./database.ts";
import { cosine, embed, pack, unpack } from "./embed.ts";
import type { Engine } from "./engines/engine.ts";

/** The maximum number of stored runs; the oldest are deleted. */
export const MAX_STORED_RUNS = 2_000;
/** Less similar runs are ignored. */
const MIN_LIKENESS = 0.3;
/** This many similar runs are enough; with fewer the next source is asked. */
export const MIN_SIMILAR_RUNS = 3;

/** A run that has ended. `at` is in ms since the epoch, `ms` its duration. `costUsd` is a decimal string, absent if unknown. */
export type RecordedRun = {
  id: string;
  agent: string | null;
  model: string | null;
  tools: readonly string[];
  steps: number;
  ms: number;
  inputTokens: number;
  outputTokens: number;
  costUsd?: string;
  at: number;
};
export type SimilarRun = RecordedRun & { likeness: number };
export type RunSource = "index" | "server" | "cache";
/** `source` is null if no source has a similar run; `failures` lists the sources that failed. */
export type RecallResult = { source: RunSource | null; runs: SimilarRun[]; failures: string[] };
/** Fetches the runs of a server that are similar to a text. */
export type FetchSimilarRuns = (text: string, k: number) => Promise<SimilarRun[]>;

type StoredRun = RecordedRun & { vector: Int8Array };

export class RunHistory {
  readonly #engine: Engine;
  readonly #database: IDBDatabase | null;
  readonly #askServer: FetchSimilarRuns | null;
  readonly #runs = new Map<string, RecordedRun>();

  constructor(engine: Engine, database: IDBDatabase | null, askServer: FetchSimilarRuns | null = null) {
    this.#engine = engine;
    this.#database = database;
    this.#askServer = askServer;
  }

  get size(): number {
    return this.#runs.size;
  }

  /** Load the stored runs into memory. */
  async load(): Promise<void> {
    for (const { vector, ...run } of await this.#loadStored()) this.#addToMemory(run, unpack(vector));
    // Each tab drops the oldest runs that it knows, so several tabs may have stored too many together.
    await this.#write([], this.#dropOldest());
  }

  /** Remember a run by the text of its task. The same run again replaces the first. */
  async remember(text: string, run: RecordedRun): Promise<void> {
    const vector = pack(embed(text));
    this.#addToMemory(run, unpack(vector));
    await this.#write([{ ...run, vector }], this.#dropOldest());
  }

  /** The `k` runs with the most similar tasks: from memory, then the server, then the database. */
  async recall(text: string, k: number): Promise<RecallResult> {
    const best: RecallResult = { source: null, runs: [], failures: [] };
    for (const [source, ask] of this.#sources(text, k)) {
      const runs = await ask().catch((error: unknown) => {
        best.failures.push(`${source}: ${error instanceof Error ? error.message : String(error)}`);
        return [];
      });
      const near = runs.filter(({ likeness }) => likeness >= MIN_LIKENESS);
      if (near.length > best.runs.length) Object.assign(best, { source, runs: near });
      if (near.length >= MIN_SIMILAR_RUNS) break;
    }
    return best;
  }

  async clear(): Promise<void> {
    this.clearMemory();
    if (this.#database) await write(this.#database, ["runs"], (store) => void store("runs").clear());
  }

  /** Clear the memory, after another tab has cleared the database. */
  clearMemory(): void {
    this.#runs.clear();
    this.#engine.clear();
  }

  #sources(text: string, k: number): [RunSource, () => Promise<SimilarRun[]>][] {
    const vector = embed(text);
    const server = this.#askServer;
    return [
      ["index", () => Promise.resolve(this.#searchMemory(vector, k))],
      ...(server ? [["server", () => server(text, k)] satisfies [RunSource, () => Promise<SimilarRun[]>]] : []),
      ["cache", () => this.#searchDatabase(vector, k)],
    ];
  }

  #searchMemory(vector: Float32Array, k: number): SimilarRun[] {
    return this.#engine.search(vector, k).flatMap(({ id, score }) => {
      const run = this.#runs.get(id);
      return run ? [{ ...run, likeness: score }] : [];
    });
  }

  async #searchDatabase(vector: Float32Array, k: number): Promise<SimilarRun[]> {
    const kept = await this.#loadStored();
    return kept
      .map(({ vector: packed, ...run }) => ({ ...run, likeness: cosine(vector, unpack(packed)) }))
      .sort((a, b) => b.likeness - a.likeness)
      .slice(0, k);
  }

  async #loadStored(): Promise<StoredRun[]> {
    return this.#database ? ((await readAll(this.#database, "runs")) as StoredRun[]) : [];
  }

  #addToMemory(run: RecordedRun, vector: Float32Array): void {
    this.#runs.set(run.id, run);
    this.#engine.add(run.id, vector);
  }

  #dropOldest(): string[] {
    if (this.size <= MAX_STORED_RUNS) return [];
    const oldest = [...this.#runs.values()].sort((a, b) => a.at - b.at).slice(0, this.size - MAX_STORED_RUNS);
    for (const { id } of oldest) {
      this.#runs.delete(id);
      this.#engine.remove(id);
    }
    return oldest.map(({ id }) => id);
  }

  async #write(added: readonly StoredRun[], removed: readonly string[]): Promise<void> {
    if (!this.#database || added.length + removed.length === 0) return;
    await write(this.#database, ["runs"], (store) => {
      for (const run of added) store("runs").put(run);
      for (const id of removed) store("runs").delete(id);
    });
  }
}
