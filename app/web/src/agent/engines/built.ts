// The engines for tests and benches outside a browser, from the files that a browser would be served.

import ruvectorUrl from "../../../node_modules/@ruvector/wasm/pkg/ruvector_wasm_bg.wasm?inline&url";
import scanUrl from "../assembly/scan.wasm?inline&url";
import type { Engine } from "./engine.ts";
import { plain } from "./plain.ts";
import { ruvector } from "./ruvector.ts";
import { simd } from "./simd.ts";

export const built: Record<Engine["name"], () => Promise<Engine>> = {
  simd: async () => simd(await bytes(scanUrl)),
  ruvector: async () => ruvector(await bytes(ruvectorUrl)),
  plain: () => Promise.resolve(plain()),
};

async function bytes(url: string): Promise<ArrayBuffer> {
  return (await fetch(url)).arrayBuffer();
}
