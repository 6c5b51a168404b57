// The AI SDK's providers for OpenAI's protocol: the program runs for the one that KHALA_CLIENT names.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const cells = await import(process.env.KHALA_CELLS);
const { baseURL, call, cell, ignored, isCanceled, message, png, providerModel, spentToken, token, words, works } = cells;
const { deepEqual, equal, match } = (await import("node:assert")).strict;

const makers = {
  "ai-sdk-chat": (name, apiKey, headers) => createOpenAI({ baseURL, apiKey, headers }).chat(name),
  "ai-sdk-responses": (name, apiKey, headers) => createOpenAI({ baseURL, apiKey, headers }).responses(name),
  "ai-sdk-compatible": (name, apiKey, headers) =>
    createOpenAICompatible({ name: "khala", baseURL, apiKey, headers, supportsStructuredOutputs: true })(name),
};
const client = process.env.KHALA_CLIENT;
const model = ({ name = "khala", key = token, headers } = {}) => makers[client](name, key, headers);
const called = [];
const weather = tool({
  description: "Tells the weather.",
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => (called.push(city), "sunny"),
});
const options = { maxRetries: 0 };

await cell("text", async () => equal((await generateText({ ...options, model: model(), prompt: "/echo En taro Adun" })).text, "En taro Adun") ?? works());

await cell("stream", async () => {
  let text = "";
  for await (const delta of streamText({ ...options, model: model({ name: providerModel }), prompt: "/words=5" }).textStream) text += delta;
  equal(text.trim(), words(5));
});

await cell("tools", async () => {
  const answer = await generateText({ ...options, model: model(), prompt: call, tools: { weather }, stopWhen: stepCountIs(3) });
  deepEqual([answer.text, called.splice(0)], ["It is fine.", ["Aiur"]]);
});

await cell("forced", async () => {
  const toolChoice = { type: "tool", toolName: "weather" };
  const { toolCalls } = await generateText({ ...options, model: model(), prompt: "Hello", tools: { weather }, toolChoice });
  deepEqual([toolCalls[0].toolName, Object.keys(toolCalls[0].input)], ["weather", ["city"]]);
});

await cell("structured", async () => {
  const schema = z.object({ name: z.string(), population: z.number().int() });
  const { output } = await generateText({ ...options, model: model(), prompt: "Which is the largest city?", output: Output.object({ schema }) });
  schema.parse(output);
  return works("With `Output.object`.");
});

await cell("images", async () => {
  const content = [{ type: "text", text: "Look." }, { type: "image", image: png }];
  match((await generateText({ ...options, model: model(), messages: [{ role: "user", content }] })).text, /image\/png/);
});

await cell("usage", async () => equal((await generateText({ ...options, model: model(), prompt: "/words=7 /pace=0" })).usage.outputTokens, 7) ?? works());

await cell("cancel", async () => {
  const prompt = "/words=2000 /pace=50";
  const controller = new AbortController();
  const headers = { "x-cancel-on-disconnect": "true" };
  const { textStream } = streamText({ ...options, model: model({ headers }), prompt, abortSignal: controller.signal });
  for await (const _ of textStream) controller.abort();
  if (client === "ai-sdk-responses") return ignored("A response continues without its client; `responses.cancel` ends it, which the provider does not call.");
  equal(await isCanceled(prompt), true);
  return works("`abortSignal`, with the header `x-cancel-on-disconnect: true`.");
});

cells.absent("resume", "The provider has no request that continues a stream; `useChat` has.");
cells.absent("approvals", "The AI SDK asks for approval of its own tools, in the client.");

await cell("errors", async () => {
  const ask = (more) => generateText({ ...options, model: model(more), prompt: "Hello" });
  return works("", await message(ask({ name: "gpt-none" })), await message(ask({ key: spentToken })));
});

cells.finish();
