// LangChain for JavaScript: `ChatOpenAI`.
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const cells = await import(process.env.KHALA_CELLS);
const { baseURL, call, cell, isCanceled, message, png, providerModel, spentToken, token, words, works } = cells;
const { deepEqual, equal, match } = (await import("node:assert")).strict;

const chat = ({ key = token, headers, ...more } = {}) =>
  new ChatOpenAI({ model: "khala", apiKey: key, maxRetries: 0, configuration: { baseURL, defaultHeaders: headers }, ...more });
const weather = tool(({ city }) => `sunny in ${city}`, {
  name: "weather",
  description: "Tells the weather.",
  schema: z.object({ city: z.string() }),
});
const City = z.object({ name: z.string(), population: z.number().int() });

await cell("text", async () => {
  equal((await chat().invoke("/echo En taro Adun")).text, "En taro Adun");
  equal((await chat({ useResponsesApi: true }).invoke("/echo En taro Adun")).text, "En taro Adun");
  return works("With chat completions, and with `useResponsesApi`.");
});

await cell("stream", async () => {
  let text = "";
  for await (const chunk of await chat({ model: providerModel }).stream("/words=5")) text += chunk.text;
  equal(text.trim(), words(5));
});

await cell("tools", async () => {
  const model = chat().bindTools([weather]);
  const first = await model.invoke(call);
  const [called] = first.tool_calls;
  const result = new ToolMessage({ content: await weather.invoke(called.args), tool_call_id: called.id });
  equal((await model.invoke([new HumanMessage(call), first, result])).text, "It is fine.");
});

await cell("forced", async () => {
  const [called] = (await chat().bindTools([weather], { tool_choice: "weather" }).invoke("Hello")).tool_calls;
  deepEqual([called.name, Object.keys(called.args)], ["weather", ["city"]]);
});

await cell("structured", async () => {
  for (const method of ["jsonSchema", "functionCalling"])
    City.parse(await chat().withStructuredOutput(City, { method, name: "city" }).invoke("Which is the largest city?"));
  return works("With the methods `jsonSchema` and `functionCalling`.");
});

await cell("images", async () => {
  const content = [{ type: "text", text: "Look." }, { type: "image_url", image_url: { url: png } }];
  match((await chat().invoke([new HumanMessage({ content })])).text, /image\/png/);
});

await cell("usage", async () => equal((await chat().invoke("/words=7 /pace=0")).usage_metadata.output_tokens, 7) ?? works());

await cell("cancel", async () => {
  const prompt = "/words=2000 /pace=50";
  const controller = new AbortController();
  const headers = { "x-cancel-on-disconnect": "true" };
  await message((async () => {
    for await (const _ of await chat({ headers }).stream(prompt, { signal: controller.signal })) controller.abort();
    throw new Error("stopped");
  })());
  equal(await isCanceled(prompt), true);
  return works("`signal`, with the header `x-cancel-on-disconnect: true`.");
});

cells.absent("resume", "The client has no request that continues a stream.");
cells.absent("approvals", "LangChain asks for approval of its own tools, in the client.");

await cell("errors", async () =>
  works("", await message(chat({ model: "gpt-none" }).invoke("Hello")), await message(chat({ key: spentToken }).invoke("Hello"))),
);

cells.finish();
