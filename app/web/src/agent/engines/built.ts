// The engines for tests and benchmarks outside a browser, from the files that a browser would load.

import ruvectorUrl from "../../../node_modules/@ruvector/wasm/pkg/ruvector_wasm_bg.wasm?inline&url";
import scanUrl from "../assembly/scan.wasm?inline&url";
import type { Engine } from "./engine.ts";
import { createPlainEngine } from "./plain.ts";
import { createRuvectorEngine } from "./ruvector.ts";
import { createSimdEngine } from "./simd.ts";

export const builtEngines: Record<Engine["name"], () => Promise<Engine>> = {
  simd: async () => createSimdEngine(await bytes(scanUrl)),
  ruvector: async () => createRuvectorEngine(await bytes(ruvectorUrl)),
  plain: () => Promise.resolve(createPlainEngine()),
};

async function bytes(url: string): Promise<ArrayBuffer> {
  return (await fetch(url)).arrayBuffer();
}
