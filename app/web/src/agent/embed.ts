// Lexical vectors: texts that share words or parts of words have similar vectors. Meaning is not considered.

import { DIMENSIONS } from "./engines/engine.ts";
import { segmentsOf } from "./word-segments.ts";

/** The part of a text that is considered, in UTF-16 units. */
export const MAX_TEXT_CHARACTERS = 20_000;
const MAX_WORD_CHARACTERS = 64;
const MIN_GRAM_CHARACTERS = 3;
const MAX_GRAM_CHARACTERS = 5;
/** Shorter words weigh less, because most of them are function words such as `the` and `of`. */
const FULL_WEIGHT_CHARACTERS = 5;

/**
 * A vector of 384 numbers and length 1, or of zeros for a text without letters and digits. Words and their character 3- to
 * 5-grams are hashed into the numbers, weighted by the logarithm of their frequency. No statistics of other texts are used, so
 * the same text always has the same vector.
 */
export function embed(text: string): Float32Array {
  const counts = new Map<string, number>();
  for (const run of segmentsOf(text.slice(0, MAX_TEXT_CHARACTERS))) {
    const word = run.slice(0, MAX_WORD_CHARACTERS);
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  const vector = new Float32Array(DIMENSIONS);
  for (const [word, count] of counts) {
    addWord(vector, word, (1 + Math.log(count)) * Math.min(1, word.length / FULL_WEIGHT_CHARACTERS));
  }
  return normalised(vector);
}

/** The word weighs as much as all its grams together; each word has its share whatever its length. */
function addWord(vector: Float32Array, word: string, weight: number): void {
  addFeature(vector, hash(word, 0, word.length, 0x9e3779b9), weight);
  const marked = `<${word}>`;
  let grams = 0;
  for (let size = MIN_GRAM_CHARACTERS; size <= MAX_GRAM_CHARACTERS; size++) grams += Math.max(0, marked.length - size + 1);
  const share = weight / Math.sqrt(Math.max(1, grams));
  for (let size = MIN_GRAM_CHARACTERS; size <= MAX_GRAM_CHARACTERS; size++) {
    for (let start = 0; start + size <= marked.length; start++) addFeature(vector, hash(marked, start, start + size, size), share);
  }
}

/** The highest bit is the sign, so that colliding features cancel out as often as they add up. */
function addFeature(vector: Float32Array, hashed: number, weight: number): void {
  const index = (hashed & 0x7fffffff) % DIMENSIONS;
  vector[index] = (vector[index] ?? 0) + (hashed < 0 ? -weight : weight);
}

/** FNV-1a over UTF-16 units, mixed at the end because its low bits are weak. */
function hash(text: string, start: number, end: number, seed: number): number {
  let hashed = 0x811c9dc5 ^ seed;
  for (let index = start; index < end; index++) hashed = Math.imul(hashed ^ text.charCodeAt(index), 0x01000193);
  hashed = Math.imul(hashed ^ (hashed >>> 16), 0x85ebca6b);
  hashed = Math.imul(hashed ^ (hashed >>> 13), 0xc2b2ae35);
  return hashed ^ (hashed >>> 16);
}

/** In place. This and the functions below use loops, because they run for each message and callbacks take ten times as long. */
function normalised(vector: Float32Array): Float32Array {
  const length = Math.sqrt(cosine(vector, vector));
  if (length > 0) for (let index = 0; index < vector.length; index++) vector[index] = (vector[index] ?? 0) / length;
  return vector;
}

/** The vector in a quarter of the space, for storage. The cosine of the unpacked and the original vector is above 0.999. */
export function pack(vector: Float32Array): Int8Array<ArrayBuffer> {
  let top = 0;
  for (const value of vector) top = Math.max(top, Math.abs(value));
  const packed = new Int8Array(vector.length);
  if (top > 0) for (let index = 0; index < vector.length; index++) packed[index] = Math.round(((vector[index] ?? 0) / top) * 127);
  return packed;
}

/** A vector of length 1, or zeros. */
export function unpack(packed: Int8Array): Float32Array {
  return normalised(new Float32Array(packed));
}

/** The cosine of two vectors of length 1 or 0. */
export function cosine(a: Float32Array, b: Float32Array): number {
  let sum = 0;
  for (let index = 0; index < a.length; index++) sum += (a[index] ?? 0) * (b[index] ?? 0);
  return sum;
}
