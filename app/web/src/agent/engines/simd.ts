// The fastest engine: the exact scan of `../assembly/scan.ts` on vectors in WebAssembly memory.

import { DIMENSIONS, topIndices, checkDimensions, RowTable, type Engine, type EngineHit } from "./engine.ts";

const PAGE = 65_536;
const STRIDE = DIMENSIONS * 4;
/** The memory has the query first, then the rows, then a score for each row. */
const ROWS_AT = 2_048;
const FIRST_ROWS = 256;

type Scan = (query: number, rows: number, count: number, scores: number) => void;

/** A module that needs SIMD: a function that splats a number over lanes and counts their bits. */
const PROBE = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
);

export function hasSimd(): boolean {
  return typeof WebAssembly === "object" && WebAssembly.validate(PROBE);
}

/** `bytes` has the compiled `scan.ts`. */
export async function createSimdEngine(bytes: BufferSource): Promise<Engine> {
  const { instance } = await WebAssembly.instantiate(bytes);
  const { memory, scan } = instance.exports;
  if (!(memory instanceof WebAssembly.Memory) || typeof scan !== "function") throw new TypeError("This module has no scan.");
  return new SimdEngine(memory, scan as Scan);
}

class SimdEngine implements Engine {
  readonly name = "simd";
  readonly #rows = new RowTable();
  readonly #memory: WebAssembly.Memory;
  readonly #scan: Scan;
  #capacity = 0;
  #numbers = new Float32Array();

  constructor(memory: WebAssembly.Memory, scan: Scan) {
    this.#memory = memory;
    this.#scan = scan;
    this.#makeRoom(FIRST_ROWS);
  }

  get size(): number {
    return this.#rows.size;
  }

  add(id: string, vector: Float32Array): void {
    checkDimensions(vector);
    const row = this.#rows.place(id);
    if (row === this.#capacity) this.#makeRoom(this.#capacity * 2);
    this.#numbers.set(vector, (ROWS_AT + row * STRIDE) / 4);
  }

  remove(id: string): boolean {
    const moved = this.#rows.remove(id);
    if (moved) {
      const from = (ROWS_AT + moved.from * STRIDE) / 4;
      this.#numbers.copyWithin((ROWS_AT + moved.to * STRIDE) / 4, from, from + DIMENSIONS);
    }
    return moved !== null;
  }

  search(vector: Float32Array, k: number): EngineHit[] {
    checkDimensions(vector);
    this.#numbers.set(vector, 0);
    const scoresAt = ROWS_AT + this.#capacity * STRIDE;
    this.#scan(0, ROWS_AT, this.size, scoresAt);
    const scores = this.#numbers.subarray(scoresAt / 4, scoresAt / 4 + this.size);
    return topIndices(scores, this.size, k).map((row) => ({ id: this.#rows.idAt(row), score: scores[row] ?? 0 }));
  }

  /** WebAssembly memory can't shrink; it is reused. */
  clear(): void {
    this.#rows.clear();
  }

  #makeRoom(rows: number): void {
    const missing = ROWS_AT + rows * (STRIDE + 4) - this.#memory.buffer.byteLength;
    if (missing > 0) this.#memory.grow(Math.ceil(missing / PAGE));
    this.#capacity = rows;
    this.#numbers = new Float32Array(this.#memory.buffer);
  }
}
