// An exact scan in AssemblyScript: the scores of all rows for one query, with four lanes and four sums at a time.

/** The size of a vector: 384 numbers of 4 bytes. */
const STRIDE: usize = 1536;

/**
 * Write the dot product of the vector at `query` with each of `count` vectors from `rows` on to `scores`, as f32. The host lays
 * out the memory; nothing is allocated here.
 */
export function scan(query: usize, rows: usize, count: i32, scores: usize): void {
  for (let row: i32 = 0; row < count; row++) {
    const at = rows + <usize>row * STRIDE;
    store<f32>(scores + (<usize>row << 2), dot(query, at));
  }
}

// @ts-ignore: decorator
@inline
function dot(query: usize, at: usize): f32 {
  // Four sums, because each addition depends on the one before.
  let a = f32x4.splat(0);
  let b = f32x4.splat(0);
  let c = f32x4.splat(0);
  let d = f32x4.splat(0);
  for (let offset: usize = 0; offset < STRIDE; offset += 64) {
    a = f32x4.add(a, f32x4.mul(v128.load(query + offset), v128.load(at + offset)));
    b = f32x4.add(b, f32x4.mul(v128.load(query + offset, 16), v128.load(at + offset, 16)));
    c = f32x4.add(c, f32x4.mul(v128.load(query + offset, 32), v128.load(at + offset, 32)));
    d = f32x4.add(d, f32x4.mul(v128.load(query + offset, 48), v128.load(at + offset, 48)));
  }
  const sum = f32x4.add(f32x4.add(a, b), f32x4.add(c, d));
  return (
    f32x4.extract_lane(sum, 0) + f32x4.extract_lane(sum, 1) + (f32x4.extract_lane(sum, 2) + f32x4.extract_lane(sum, 3))
  );
}
