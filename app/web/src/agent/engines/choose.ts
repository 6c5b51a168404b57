// Chooses the fastest engine that this browser supports.

import scanUrl from "../assembly/scan.wasm?url";
import type { Engine } from "./engine.ts";
import { createPlainEngine } from "./plain.ts";
import { createRuvectorEngine } from "./ruvector.ts";
import { hasSimd, createSimdEngine } from "./simd.ts";

export type EngineFactories = { simd: (() => Promise<Engine>) | null; ruvector: () => Promise<Engine> };

/** The engines that are served beside the script. */
export function servedEngines(): EngineFactories {
  return {
    simd: hasSimd() ? async () => createSimdEngine(await bytes(scanUrl)) : null,
    ruvector: () => createRuvectorEngine(),
  };
}

/** The engine, and why faster ones failed. Never fails, because the plain engine needs nothing. */
export async function chooseEngine(ways: EngineFactories = servedEngines()): Promise<{ engine: Engine; failures: string[] }> {
  const failures: string[] = [];
  for (const [name, make] of [["simd", ways.simd], ["ruvector", ways.ruvector]] as const) {
    if (make === null) continue;
    try {
      return { engine: await make(), failures };
    } catch (error) {
      failures.push(`${name}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
  return { engine: createPlainEngine(), failures };
}

async function bytes(url: string): Promise<ArrayBuffer> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`The server answered ${response.status} for ${url}.`);
  return response.arrayBuffer();
}
