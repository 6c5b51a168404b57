// The engine of `@ruvector/wasm` with its flat index, for browsers whose WebAssembly has no SIMD.
//
// Its graph index (HNSW) and its IndexedDB storage are not implemented in this version, so they are not used.

import type { InitInput, JsSearchResult, VectorDB } from "@ruvector/wasm";

import { DIMENSIONS, checkDimensions, type Engine, type EngineHit } from "./engine.ts";

/** `source` has the bytes of the module; without it, it is loaded from beside the script. */
export async function createRuvectorEngine(source?: InitInput): Promise<Engine> {
  const { default: start, VectorDB } = await import("@ruvector/wasm");
  await start(source === undefined ? undefined : { module_or_path: source });
  return new RuvectorEngine(() => new VectorDB(DIMENSIONS, "cosine", false));
}

class RuvectorEngine implements Engine {
  readonly name = "ruvector";
  readonly #make: () => VectorDB;
  #vectors: VectorDB;

  constructor(make: () => VectorDB) {
    this.#make = make;
    this.#vectors = make();
  }

  get size(): number {
    return this.#vectors.len();
  }

  add(id: string, vector: Float32Array): void {
    checkDimensions(vector);
    this.#vectors.insert(vector, id);
  }

  remove(id: string): boolean {
    return this.#vectors.delete(id);
  }

  search(vector: Float32Array, k: number): EngineHit[] {
    checkDimensions(vector);
    return this.#vectors.search(vector, k).map(taken);
  }

  clear(): void {
    this.#vectors.free();
    this.#vectors = this.#make();
  }
}

/** Its score is a distance: one minus the cosine. A result stays in its memory until it is freed. */
function taken(result: JsSearchResult): EngineHit {
  const found = { id: result.id, score: 1 - result.score };
  result.free();
  return found;
}
