import { expect, test } from "vitest";
import modelTurn from "../../../khala/runs/model_turn.py?raw";
import { noticeLabel } from "./notice-labels.ts";

test("a switch to another model names that model", () => {
  expect(noticeLabel({ code: "model_switched", message: "Anthropic answered 503. Asking openai:gpt-6-mini instead." })).toBe("The first model couldn’t answer. gpt-6-mini took over.");
  expect(noticeLabel({ code: "model_switched", message: "The limit was reached. Asking demo instead." })).toBe("The first model couldn’t answer. demo took over.");
  expect(noticeLabel({ code: "model_switched", message: "Now another one." })).toBe("The first model couldn’t answer. Another model took over.");
});

test("the server's notice has the form from which the model is read", () => {
  expect(modelTurn).toContain('message=f"{reason} Asking {remaining_models[0]} instead."');
});

test("other notices of the server have words of the page, and those of agents keep their own", () => {
  expect(noticeLabel({ code: "resumed", message: "The answer was interrupted here, and goes on." })).toBe("The answer was interrupted here, then continued.");
  expect(noticeLabel({ code: "context_shrunk", message: "x" })).toBe("The chat was too long for the model, so it read less of it.");
  expect([noticeLabel({ code: "a_notice", message: "Mine." }), noticeLabel({ code: "toString", message: "Mine." })]).toEqual(["Mine.", "Mine."]);
});
