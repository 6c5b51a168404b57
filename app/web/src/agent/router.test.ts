import { describe, expect, test } from "vitest";

import builtInAgents from "./testing/built-in-agents.json";
import { random } from "@khala/client/testing/random.ts";
import { ROUTING_EXAMPLES } from "./routing-examples.ts";
import { confidenceOf, route, type RoutableAgent } from "./router.ts";

const agent = (id: string, changes: Partial<RoutableAgent> = {}): RoutableAgent => ({ id, name: "", description: "", instructions: "", tools: [], prompts: [], ...changes });
const TRANSLATOR = agent("translator", { name: "Translator", description: "Translates texts between languages.", prompts: ["Translate this letter into French"] });
const COOK = agent("cook", { name: "Cook", description: "Finds recipes for what is in the fridge.", prompts: ["What can I cook with eggs and leeks?"] });

describe("routing", () => {
  test("prefers the agent whose description speaks of the task", () => {
    expect(route("please translate my letters", [COOK, TRANSLATOR]).map(({ id }) => id)).toEqual(["translator", "cook"]);
    expect(route("a recipe with leeks", [COOK, TRANSLATOR]).map(({ id }) => id)).toEqual(["cook", "translator"]);
  });

  test("is not confident where nothing fits", () => {
    for (const task of ["", "zzz qqq", "👍"]) for (const { confidence } of route(task, [COOK, TRANSLATOR])) expect(confidence).toBeLessThan(0.1);
    expect(route("anything", [])).toEqual([]);
  });

  test("doesn't depend on the order of the agents", () => {
    const tasks = Object.values(ROUTING_EXAMPLES).flat();
    for (const task of tasks.slice(0, 10)) {
      expect(route(task, builtInAgents.toReversed()).map(({ confidence }) => confidence)).toEqual(route(task, builtInAgents).map(({ confidence }) => confidence));
    }
  });

  test("is more confident the more speaks for an agent", () => {
    const chance = random(1);
    for (let round = 0; round < 500; round++) {
      const features = { about: chance.next(), instructions: chance.next(), prompts: chance.next(), keywords: chance.next() };
      const confidence = confidenceOf(features);
      expect(confidence).toBeGreaterThan(0);
      expect(confidence).toBeLessThan(1);
      for (const name of ["about", "instructions", "prompts", "keywords"] as const) {
        expect(confidenceOf({ ...features, [name]: features[name] + 0.1 })).toBeGreaterThan(confidence);
      }
    }
  });
});

describe("on tasks that it was not fitted to", () => {
  const checked = Object.entries(ROUTING_EXAMPLES).flatMap(([meant, tasks]) =>
    tasks.filter((_, index) => index % 2 === 1).map((task) => ({ meant, ranked: route(task, builtInAgents) })),
  );

  test("the first agent is mostly the one that is meant", () => {
    const right = checked.filter(({ meant, ranked }) => ranked[0]?.id === meant).length;
    expect(checked.length).toBeGreaterThanOrEqual(30);
    expect(right / checked.length).toBeGreaterThan(0.75);
  });

  test("agents with a confidence of p are meant in about p of the cases", () => {
    const pairs = checked.flatMap(({ meant, ranked }) => ranked.map(({ id, confidence }) => ({ confidence, is: id === meant ? 1 : 0 })));
    const bins = [0, 1, 2].map((third) => pairs.filter(({ confidence }) => Math.min(2, Math.floor(confidence * 3)) === third));
    const mean = (values: number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
    for (const bin of bins) {
      expect(bin.length).toBeGreaterThan(4);
      expect(Math.abs(mean(bin.map(({ confidence }) => confidence)) - mean(bin.map(({ is }) => is)))).toBeLessThan(0.2);
    }
  });
});
